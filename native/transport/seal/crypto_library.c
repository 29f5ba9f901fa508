#define _GNU_SOURCE
#include "crypto_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#ifndef CRYPTO_LIBRARIES /* a test names others */
#define CRYPTO_LIBRARIES "libcrypto.so.3", "libcrypto.so.1.1"
#endif
#define NO_ATEXIT 0x00080000L /* OPENSSL_INIT_NO_ATEXIT */
#define X25519 1034           /* EVP_PKEY_X25519 */
#define GET_TAG 0x10          /* EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG */
#define SET_TAG 0x11
#define OCTET_STRING 5 /* OSSL_PARAM_OCTET_STRING */

/* OSSL_PARAM */
struct parameter {
    const char *name;
    unsigned type;
    void *data;
    size_t size, size_given;
};

static struct gv_crypto crypto;
static bool loaded;
static char reason[GV_DEATH_TEXT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *(*new_private_3)(void *library, const char *name, const char *query, const uint8_t *key, size_t size);
static void *(*new_public_3)(void *library, const char *name, const char *query, const uint8_t *key, size_t size);
static void *(*new_derive_3)(void *library, void *key, const char *query);
static void *(*new_private_1)(int type, void *engine, const uint8_t *key, size_t size);
static void *(*new_public_1)(int type, void *engine, const uint8_t *key, size_t size);
static void *(*new_derive_1)(void *key, void *engine);

static int (*get_parameters_3)(void *context, struct parameter *parameters);
static int (*set_parameters_3)(void *context, const struct parameter *parameters);

/* Version 3 makes such parameters of a control, too, on a way that is as long as the sealing of a small frame. */
static int tag_out_3(void *context, uint8_t *tag) {
    struct parameter parameters[] = {{"tag", OCTET_STRING, tag, GV_CRYPTO_TAG, 0}, {0}};
    return get_parameters_3(context, parameters);
}
static int tag_in_3(void *context, const uint8_t *tag) {
    const struct parameter parameters[] = {{"tag", OCTET_STRING, (void *)(uintptr_t)tag, GV_CRYPTO_TAG, 0}, {0}};
    return set_parameters_3(context, parameters);
}
static int tag_out_1(void *context, uint8_t *tag) { return crypto.context_control(context, GET_TAG, GV_CRYPTO_TAG, tag); }
static int tag_in_1(void *context, const uint8_t *tag) { return crypto.context_control(context, SET_TAG, GV_CRYPTO_TAG, (void *)(uintptr_t)tag); }
static void *private_3(const struct gv_crypto *c, const uint8_t *key) { return new_private_3(c->library, "X25519", NULL, key, GV_CRYPTO_KEY); }
static void *public_3(const struct gv_crypto *c, const uint8_t *key) { return new_public_3(c->library, "X25519", NULL, key, GV_CRYPTO_KEY); }
static void *derive_3(const struct gv_crypto *c, void *key) { return new_derive_3(c->library, key, NULL); }
static void *private_1(const struct gv_crypto *c, const uint8_t *key) { return (void)c, new_private_1(X25519, NULL, key, GV_CRYPTO_KEY); }
static void *public_1(const struct gv_crypto *c, const uint8_t *key) { return (void)c, new_public_1(X25519, NULL, key, GV_CRYPTO_KEY); }
static void *derive_1(const struct gv_crypto *c, void *key) { return (void)c, new_derive_1(key, NULL); }

/* Without DEEPBIND libcrypto's calls of its own functions go to the program's, where it exports some of the same names (a BoringSSL inside it). The
 * sanitizers' dlopen refuses that flag. */
static int load_flags(void) {
    bool sanitized = dlsym(RTLD_DEFAULT, "__asan_init") || dlsym(RTLD_DEFAULT, "__tsan_init") || dlsym(RTLD_DEFAULT, "__msan_init");
#ifdef GV_BREAK_DEEPBIND
    sanitized = true;
#endif
    return RTLD_NOW | RTLD_LOCAL | (sanitized ? 0 : RTLD_DEEPBIND);
}

static bool find(void *handle, const char *name, void *function) {
    void *found = dlsym(handle, name);
    memcpy(function, &found, sizeof found);
    if (!found) snprintf(reason, sizeof reason, "it has no %s", name);
    return found;
}

static bool find_functions(void *h) {
    return find(h, "EVP_CIPHER_CTX_new", &crypto.context_new) && find(h, "EVP_CIPHER_CTX_free", &crypto.context_free) &&
           find(h, "EVP_CIPHER_CTX_ctrl", &crypto.context_control) && find(h, "EVP_CipherInit_ex", &crypto.cipher_init) &&
           find(h, "EVP_CipherUpdate", &crypto.cipher_update) && find(h, "EVP_CipherFinal_ex", &crypto.cipher_final) &&
           find(h, "ERR_set_mark", &crypto.mark) && find(h, "ERR_pop_to_mark", &crypto.unmark) &&
           find(h, "EVP_PKEY_get_raw_public_key", &crypto.get_public) && find(h, "EVP_PKEY_free", &crypto.key_free) &&
           find(h, "EVP_PKEY_CTX_free", &crypto.derive_free) && find(h, "EVP_PKEY_derive_init", &crypto.derive_init) &&
           find(h, "EVP_PKEY_derive_set_peer", &crypto.derive_peer) && find(h, "EVP_PKEY_derive", &crypto.derive);
}

/* A library context of our own: neither the program's configuration nor its providers are in it, and what the program cleans up at its exit leaves it. */
static bool prepare_3(void *h) {
    void *(*context_new)(void);
    void *(*fetch)(void *library, const char *name, const char *query);
    if (!find(h, "OSSL_LIB_CTX_new", &context_new) || !find(h, "EVP_CIPHER_fetch", &fetch)) return false;
    if (!find(h, "EVP_PKEY_new_raw_private_key_ex", &new_private_3) || !find(h, "EVP_PKEY_new_raw_public_key_ex", &new_public_3)) return false;
    if (!find(h, "EVP_PKEY_CTX_new_from_pkey", &new_derive_3)) return false;
    if (!find(h, "EVP_CIPHER_CTX_get_params", &get_parameters_3) || !find(h, "EVP_CIPHER_CTX_set_params", &set_parameters_3)) return false;
    crypto.tag_out = tag_out_3;
    crypto.tag_in = tag_in_3;
    crypto.private_key = private_3;
    crypto.public_key = public_3;
    crypto.derive_context = derive_3;
    if (!(crypto.library = context_new())) return false;
    crypto.ciphers[GV_CIPHER_AES] = fetch(crypto.library, "AES-256-GCM", NULL);
    crypto.ciphers[GV_CIPHER_CHACHA] = fetch(crypto.library, "ChaCha20-Poly1305", NULL);
    return true;
}

static bool prepare_1(void *h) {
    const void *(*aes)(void), *(*chacha)(void);
    if (!find(h, "EVP_aes_256_gcm", &aes) || !find(h, "EVP_chacha20_poly1305", &chacha)) return false;
    if (!find(h, "EVP_PKEY_new_raw_private_key", &new_private_1) || !find(h, "EVP_PKEY_new_raw_public_key", &new_public_1)) return false;
    if (!find(h, "EVP_PKEY_CTX_new", &new_derive_1)) return false;
    crypto.tag_out = tag_out_1;
    crypto.tag_in = tag_in_1;
    crypto.private_key = private_1;
    crypto.public_key = public_1;
    crypto.derive_context = derive_1;
    crypto.ciphers[GV_CIPHER_AES] = aes();
    crypto.ciphers[GV_CIPHER_CHACHA] = chacha();
    return true;
}

static bool prepare(void *h) {
    int (*init)(uint64_t options, const void *settings);
    unsigned long (*number)(void);
    const char *(*version)(int type);
    if (!find_functions(h) || !find(h, "OPENSSL_init_crypto", &init) || !find(h, "OpenSSL_version_num", &number) ||
        !find(h, "OpenSSL_version", &version))
        return false;
    /* Where we are the first, nothing is cleaned up at the program's exit: its exit handlers may still call CUDA. */
    init(NO_ATEXIT, NULL);
    snprintf(crypto.version, sizeof crypto.version, "%s", version(0));
    crypto.mark();
    bool good = number() >> 28 >= 3 ? prepare_3(h) : prepare_1(h);
    crypto.unmark();
    if (good && crypto.ciphers[GV_CIPHER_AES] && crypto.ciphers[GV_CIPHER_CHACHA]) return true;
    if (!*reason) snprintf(reason, sizeof reason, "it has no AES-256-GCM or no ChaCha20-Poly1305");
    return false;
}

static void load(void) {
    static const char *const names[] = {CRYPTO_LIBRARIES};
    char first[80] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names && !loaded; i++) {
        void *handle = dlopen(names[i], load_flags());
        *reason = 0;
        loaded = handle && prepare(handle);
        if (loaded || *first) continue;
        const char *text = handle ? reason : dlerror();
        snprintf(first, sizeof first, "%.79s", text ? text : names[i]);
    }
    if (!loaded) snprintf(reason, sizeof reason, "no library to seal the link with (%s); install OpenSSL 3 (libssl3), or agree on tcp(plain)", first);
}

const struct gv_crypto *gv_crypto_library(char why[GV_DEATH_TEXT]) {
    pthread_once(&once, load);
    if (!loaded) snprintf(why, GV_DEATH_TEXT, "%s", reason);
    return loaded ? &crypto : NULL;
}

enum gv_cipher gv_cipher_preferred(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") ? GV_CIPHER_AES : GV_CIPHER_CHACHA;
#elif defined(__aarch64__)
    return (getauxval(AT_HWCAP) & (HWCAP_AES | HWCAP_PMULL)) == (HWCAP_AES | HWCAP_PMULL) ? GV_CIPHER_AES : GV_CIPHER_CHACHA;
#else
    return GV_CIPHER_CHACHA;
#endif
}

const char *gv_cipher_name(unsigned cipher) {
    return cipher == GV_CIPHER_AES ? "AES-256-GCM" : cipher == GV_CIPHER_CHACHA ? "ChaCha20-Poly1305" : NULL;
}
