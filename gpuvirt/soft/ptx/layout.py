"""Where the variables of a kernel and of the functions that it calls lie: shared memory, local memory, function addresses."""

from __future__ import annotations

import re

from gpuvirt.soft.errors import BadPtx, Unsupported
from gpuvirt.soft.ptx.device_runtime import CHILD_BUFFER, CHILD_LAUNCH, LAST_ERROR, SET_CONDITION
from gpuvirt.soft.ptx.module import Module
from gpuvirt.soft.ptx.opcodes import Access, Flow
from gpuvirt.soft.ptx.parser import Body, Call, Ins, Name, Operand, Reg, Special, Sym, Vec, parse_body

FUNCTION_BASE = 0x0F00_0000_0000_0000  # addresses of device functions: no memory is there
KERNEL_BASE = 0x0E00_0000_0000_0000  # addresses of kernels, which kernels launch (SOFT_KERNEL_BASE)
_TAKEN = re.compile(r"mov\.[bu]64\s+[^,;]+,\s*([A-Za-z_$][\w$]*)\s*;")
RECURSION_BYTES = 16384
MOST_LOCAL = 512 << 10  # of a thread, as on all GPUs
MOST_SHARED = 227 << 10  # of a block (SOFT_SHARED_OPTIN)
STACK_BYTES = 16384  # of a lane, for alloca
RESERVED_BYTES = 1024  # shared memory that the system keeps for itself in each block; cooperative groups synchronise parts of a block there
# What only a driver has, beside those below. Such names come with the device runtime library, most of which nobody calls.
DRIVERS_OWN = ("__cuda_syscall_", "cnp")
SYSCALLS = {"vprintf", "malloc", "free", "__assertfail", CHILD_BUFFER, CHILD_LAUNCH, LAST_ERROR, SET_CONDITION}


def function_token(module: Module, name: str) -> int:
    """The address that a device function or a kernel has for the program."""
    if module.funcs[name].is_kernel:
        numbers = [n for n, kernel in enumerate(module.kernels) if kernel.name == name]
        if not numbers:
            raise BadPtx(f"the address of the kernel '{name}' is taken, which is not defined in this module")
        return KERNEL_BASE + 16 * (numbers[0] + 1)
    return FUNCTION_BASE + 16 * (list(module.funcs).index(name) + 1)


def address_taken(module: Module) -> set[str]:
    """Device functions whose address is taken anywhere in the module."""
    if module.address_taken is None:
        taken = {n for n in _TAKEN.findall(module.text) if n in module.funcs}
        for variable in module.variables.values():
            if variable.init:
                taken.update(n for n in re.findall(r"[A-Za-z_$][\w$]*", variable.init) if n in module.funcs)
        module.address_taken = {n for n in taken if not module.funcs[n].is_kernel}
    return module.address_taken


class Program:
    """A kernel and the functions that it can reach, parsed."""

    def __init__(self, module: Module, kernel: str) -> None:
        self.module = module
        self.kernel = kernel
        self.bodies: dict[str, Body] = {}
        self.calls: dict[str, set[str]] = {}
        self.indirect: set[str] = set()
        self.exits = False  # a device function may end the thread
        work = [kernel]
        while work:
            name = work.pop()
            if name in self.bodies:
                continue
            func = module.funcs[name]
            if func.start == func.end and name.startswith(DRIVERS_OWN):
                raise Unsupported(f"the device runtime's '{name}' is not supported: call it on the host")
            if func.start == func.end:
                raise BadPtx(f"the function '{name}' is called but not defined in this module")
            body = self.bodies[name] = parse_body(module, func)
            called = self.calls[name] = set()
            for _, block in body.blocks:
                for ins in block:
                    self.exits = self.exits or (ins.traits.flow is Flow.EXIT and not func.is_kernel)
                    if isinstance(ins.args, Call):
                        target = ins.args.target
                        if isinstance(target, Reg):
                            self.indirect.add(name)
                            called.update(address_taken(module))
                        elif isinstance(target, (Sym, Name)) and target.name not in SYSCALLS:
                            called.add(target.name)
            for target_name in sorted(called):
                if target_name not in module.funcs:
                    raise BadPtx(f"the function '{target_name}' is called but not declared")
                work.append(target_name)


class Layout:
    """Offsets of every variable of a program."""

    def __init__(self, program: Program) -> None:
        module = self.module = program.module
        self.offsets: dict[str, int] = {}  # shared variables
        self.locals: dict[str, int] = {}
        self.functions: dict[str, int] = {}
        self.frames: dict[str, int] = {}
        size = 0
        dynamic: list[str] = []
        align_dynamic = 16
        body_dynamic: list[tuple[str, str]] = []
        self.private: dict[str, dict[str, int]] = {}
        for name, body in program.bodies.items():
            frame = 0
            own: dict[str, int] = {}
            for variable in body.locals.values():
                if variable.space == "shared" and variable.unsized:
                    body_dynamic.append((name, variable.name))
                    align_dynamic = max(align_dynamic, variable.align)
                elif variable.space == "shared":
                    size = -(-size // variable.align) * variable.align
                    own[variable.name] = size
                    size += variable.size
                else:
                    frame = -(-frame // variable.align) * variable.align
                    own[variable.name] = frame
                    frame += variable.size
            self.private[name] = own
            self.frames[name] = -(-frame // 16) * 16
        used = sorted({s for body in program.bodies.values() for s in symbols(body)})
        for symbol in used:
            shared = module.variables.get(symbol)
            if shared is not None and shared.space == "shared":
                if shared.unsized or shared.linkage == "extern":
                    dynamic.append(symbol)
                    align_dynamic = max(align_dynamic, shared.align)
                else:
                    size = -(-size // shared.align) * shared.align
                    self.offsets[symbol] = size
                    size += shared.size
            elif symbol in module.funcs:
                self.functions[symbol] = function_token(module, symbol)
        self.names_blocks = any(_names_blocks(body) for body in program.bodies.values())
        self.reserved_offset = -(-size // 16) * 16
        if any(_uses_reserved(body) for body in program.bodies.values()):
            size = self.reserved_offset + RESERVED_BYTES
        self.static_shared = size
        self.dynamic_offset = -(-size // align_dynamic) * align_dynamic
        for symbol in dynamic:
            self.offsets[symbol] = self.dynamic_offset
        if size > MOST_SHARED or self.dynamic_offset > MOST_SHARED:
            raise BadPtx(f"'{program.kernel}' has {size} bytes of static shared memory; a block may have {MOST_SHARED}")
        for name, symbol in body_dynamic:
            self.private[name][symbol] = self.dynamic_offset
        self.local_bytes = self._depth(program)
        if self.local_bytes > MOST_LOCAL:
            raise BadPtx(f"'{program.kernel}' has {self.local_bytes} bytes of local memory a thread; it may have {MOST_LOCAL}")
        self.stack_pointer: int | None = None  # where a lane's local memory says how far down `alloca` has come
        if any(ins.traits.access in (Access.STACK, Access.TAKES) for body in program.bodies.values() for _, block in body.blocks for ins in block):
            self.stack_low = self.local_bytes
            self.stack_pointer = self.stack_low + STACK_BYTES
            self.local_bytes = self.stack_pointer + 16

    def _depth(self, program: Program) -> int:
        state: dict[str, int] = {}
        recursive = False

        def visit(name: str) -> int:
            nonlocal recursive
            if state.get(name) == -1:
                recursive = True
                return 0
            if name in state:
                return state[name]
            state[name] = -1
            deepest = max((visit(c) for c in program.calls[name]), default=0)
            state[name] = self.frames[name] + deepest
            return state[name]

        total = visit(program.kernel)
        self.recursive = recursive
        return total + (RECURSION_BYTES if recursive else 0)

    def enter(self, body: Body) -> Layout:
        """This layout as one function sees it, with its own variables."""
        view = object.__new__(Layout)
        view.__dict__.update(self.__dict__)
        own = self.private[body.func.name]
        view.offsets = {**self.offsets, **{n: o for n, o in own.items() if body.locals[n].space == "shared"}}
        view.locals = {n: o for n, o in own.items() if body.locals[n].space == "local"}
        return view


def _names_blocks(body: Body) -> bool:
    """Whether it asks for addresses in other blocks of the cluster; shared addresses then say whose they are."""
    return any(ins.op in ("mapa", "getctarank") or "cta_group::2" in ins.mods for _, block in body.blocks for ins in block)


def _uses_reserved(body: Body) -> bool:
    operands = (operand for _, block in body.blocks for ins in block for operand in ins.ops)
    return any(isinstance(operand, Special) and operand.name.startswith("%reserved_smem") for operand in operands)


def symbols(body: Body) -> set[str]:
    """Every symbol that a body names."""
    found: set[str] = set()

    def visit(operand: Operand) -> None:
        if isinstance(operand, (Sym, Name)):
            found.add(operand.name)
        elif isinstance(operand, Vec):
            for item in operand.items:
                visit(item)
        elif hasattr(operand, "base"):
            visit(operand.base)

    def visit_ins(ins: Ins) -> None:
        for operand in ins.ops:
            visit(operand)
        if isinstance(ins.args, Call):
            for arg in ins.args.args:
                visit(arg)

    for _, block in body.blocks:
        for ins in block:
            visit_ins(ins)
    return found
