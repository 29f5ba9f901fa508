"""Tenants' folders and keys: apart from one another, the same at the next start, and planting by names that are public does not work."""

from __future__ import annotations

import hashlib
import hmac
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuvirt.errors import GpuvirtError
from gpuvirt.server import tenants as module
from gpuvirt.server.box import features
from gpuvirt.server.box.choice import FIRST_USER
from gpuvirt.server.tenants import Tenants
from gpuvirt.soft.host import object_cache

BECOMES = """
import os, sys
from gpuvirt.server.box.box import Box
Box("soft", user=int(sys.argv[1])).close()
assert set(os.getresuid() + os.getresgid()) == {int(sys.argv[1])} and os.getgroups() == []
try:
    os.setresuid(0, 0, 0)
except OSError:
    sys.exit(0)
sys.exit("it is root again")
"""


def test_tenants_are_apart_and_stay_the_same(tmp_path: Path) -> None:
    one = Tenants(tmp_path)
    a, b = one.of(b"a" * 16), one.of(b"b" * 16)
    assert one.of(b"a" * 16) is a
    assert len({a.name, b.name, a.key, b.key}) == 4 and not os.path.samestat(os.fstat(a.folder), os.fstat(b.folder))
    again = Tenants(tmp_path).of(b"a" * 16)
    assert (again.name, again.key) == (a.name, a.key) and os.path.samestat(os.fstat(a.folder), os.fstat(again.folder))
    # Names and keys are not to be had from what is public: the token's id goes over the wire in the clear.
    assert a.name not in (hashlib.sha256(b"a" * 16).hexdigest()[:32], hmac.digest(b"", b"folder;" + b"a" * 16, "sha256").hex()[:32])
    other = Tenants(tmp_path / "other").of(b"a" * 16)
    assert other.name != a.name and other.key != a.key
    for folder in (tmp_path / "tenants", tmp_path / "tenants" / a.name, tmp_path / "tenants" / "secret"):
        assert not folder.stat().st_mode & 0o077
    one.close()


def test_a_key_says_nothing_about_itself_in_logs(tmp_path: Path) -> None:
    tenant = Tenants(tmp_path).of(b"a")
    assert repr(tenant.key) not in repr(tenant) and tenant.key.hex() not in repr(tenant)


def test_a_root_that_cannot_be_used_keeps_nothing() -> None:
    tenant = Tenants(Path("/proc/gpuvirt")).of(b"a" * 16)
    assert tenant.folder == -1 and len(tenant.key) == 32


@pytest.mark.parametrize("wrong", ["short", "readable by others", "link"])
def test_a_secret_of_somebody_else_is_not_used(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(bytes(31 if wrong == "short" else 32))
    file.chmod(0o644 if wrong == "readable by others" else 0o600)
    if wrong == "link":
        file.rename(tmp_path / "there")
        file.symlink_to(tmp_path / "there")
    with pytest.raises((GpuvirtError, OSError)):
        module._secret(file)


def test_a_tenant_that_does_not_come_again_is_forgotten(tmp_path: Path) -> None:
    first = Tenants(tmp_path)
    old, young = first.of(b"old"), first.of(b"young")
    past = time.time() - module.UNUSED_LIMIT - 100
    os.utime(tmp_path / "tenants" / old.name, (past, past))
    Tenants(tmp_path)
    assert not (tmp_path / "tenants" / old.name).exists() and (tmp_path / "tenants" / young.name).exists()


def test_an_entry_without_the_tenants_key_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the review planted: an entry for a kernel that everybody can name, written by somebody who may write the file."""
    monkeypatch.setattr(object_cache, "_folder", None)
    monkeypatch.setattr(object_cache, "_key", b"")
    identity = "a module;a kernel;(32, 1, 1);a machine;a version;2"
    object_cache.use(tmp_path, b"t" * 32)
    name = object_cache.name(identity)
    assert object_cache.write(name, b"about", b"sound code") and object_cache.read(name) == (b"about", b"sound code")
    for key in (b"", b"o" * 32):
        object_cache.use(tmp_path, key)
        assert object_cache.name(identity) != name
        object_cache.write(name, b"about", b"planted code")  # in the very place of the tenant's entry
        object_cache.use(tmp_path, b"t" * 32)
        assert object_cache.read(name) is None
        assert object_cache.write(name, b"about", b"sound code")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to others")
def test_tenants_are_users_of_their_own(tmp_path: Path) -> None:
    """Nobody else can enter a tenant's folder, and whose user is whose stays at the next start."""
    first = Tenants(tmp_path, users=True)
    a, b = first.of(b"a" * 16), first.of(b"b" * 16)
    assert FIRST_USER <= a.user != b.user >= FIRST_USER
    for tenant in (a, b):
        folder = tmp_path / "tenants" / tenant.name
        for path in (folder, *folder.iterdir()):
            assert (path.stat().st_uid, path.stat().st_gid) == (tenant.user, tenant.user) and not path.stat().st_mode & 0o077
    again = Tenants(tmp_path, users=True)
    assert (again.of(b"b" * 16).user, again.of(b"a" * 16).user) == (b.user, a.user)
    assert again.of(b"c" * 16).user not in (a.user, b.user)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to others")
def test_a_server_with_users_leaves_the_folders_of_one_without(tmp_path: Path) -> None:
    """A server whose driver is a client gives no users, and runs beside one that does: each keeps its tenant's images."""
    without, beside = Tenants(tmp_path), Tenants(tmp_path, users=True)
    ours, theirs = without.of(b"a" * 16), beside.of(b"a" * 16)
    Tenants(tmp_path).of(b"a" * 16)  # one more start
    for tenant, user in ((ours, 0), (theirs, theirs.user)):
        folder = tmp_path / "tenants" / tenant.name
        assert tenant.user == user and [path.stat().st_uid for path in (folder, *folder.iterdir())] == [user] * 4
    assert theirs.user >= FIRST_USER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to others")
def test_folders_that_were_given_away_in_part_are_given_away_whole(tmp_path: Path) -> None:
    """A daemon was killed in between: the folder's owner is the record, and changes last."""
    tenant = Tenants(tmp_path, users=True).of(b"a" * 16)
    folder = tmp_path / "tenants" / tenant.name
    for path in (folder, folder / "kernels"):
        os.chown(path, 0, 0)
    again = Tenants(tmp_path, users=True).of(b"a" * 16)
    assert again.name == tenant.name and [path.stat().st_uid for path in (folder, *folder.iterdir())] == [again.user] * 4


@pytest.mark.skipif(os.geteuid() != 0 or bool(features.missing()), reason="only root can become another user, in a box that this kernel has")
def test_a_worker_becomes_its_tenants_user_for_good() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", BECOMES, str(FIRST_USER + 5)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
