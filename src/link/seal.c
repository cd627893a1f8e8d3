/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal - keys of a connection, and sealed pieces: X25519, BLAKE2b, AES-256-GCM where both
 * processors have its instructions, else ChaCha20-Poly1305.
 *
 * The library's context is an end's own, so that no file of configuration is read, and a program
 * that uses libcrypto itself does not meet it.
 */
#include "link/inner.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <string.h>
#include <sys/random.h>

enum { NONCE = 12, WIRE_VERSION = 1, WITH_KEY = 1, WITH_AES = 2, PUBLIC_AT = 16, KEYS = 64 };
static const char magic[8] = {'i', 'n', 'g', 'l', 'e', 'e', 'n', 'd'};

struct link_crypto {
    OSSL_LIB_CTX *lib;
    EVP_CIPHER *aes, *chacha;
    EVP_MAC *blake;
    bool has_aes;
};

/* Without these instructions ChaCha20 is several times as fast. */
static bool has_instructions(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#else
    return false;
#endif
}

struct link_crypto *link_crypto_create(bool no_aes)
{
    struct link_crypto *c = OPENSSL_zalloc(sizeof *c);
    if (!c)
        return NULL;
    c->lib = OSSL_LIB_CTX_new();
    c->aes = c->lib ? EVP_CIPHER_fetch(c->lib, "AES-256-GCM", NULL) : NULL;
    c->chacha = c->lib ? EVP_CIPHER_fetch(c->lib, "ChaCha20-Poly1305", NULL) : NULL;
    c->blake = c->lib ? EVP_MAC_fetch(c->lib, "BLAKE2BMAC", NULL) : NULL;
    c->has_aes = has_instructions() && !no_aes;
    if (c->aes && c->chacha && c->blake)
        return c;
    link_crypto_free(c);
    return NULL;
}

void link_crypto_free(struct link_crypto *c)
{
    if (!c)
        return;
    EVP_MAC_free(c->blake);
    EVP_CIPHER_free(c->chacha);
    EVP_CIPHER_free(c->aes);
    OSSL_LIB_CTX_free(c->lib);
    OPENSSL_free(c);
}

bool link_preamble_make(const struct link_crypto *c, uint8_t own[32], uint8_t out[LINK_PREAMBLE])
{
    size_t n = 32;
    memset(out, 0, LINK_PREAMBLE);
    memcpy(out, magic, sizeof magic);
    out[8] = WIRE_VERSION;
    if (!c)
        return true;
    out[9] = (uint8_t)(WITH_KEY | (c->has_aes ? WITH_AES : 0));
    if (getrandom(own, 32, 0) != 32)
        return false;
    EVP_PKEY *k = EVP_PKEY_new_raw_private_key_ex(c->lib, "X25519", NULL, own, 32);
    const bool ok = k && EVP_PKEY_get_raw_public_key(k, out + PUBLIC_AT, &n) > 0 && n == 32;
    EVP_PKEY_free(k);
    return ok;
}

const char *link_preamble_check(const uint8_t at[LINK_PREAMBLE], bool keyed)
{
    if (memcmp(at, magic, sizeof magic) != 0)
        return "the other end is none of this version of ingle";
    if (at[8] != WIRE_VERSION)
        return "the other end speaks another version of the protocol";
    if ((at[9] & WITH_KEY) != (keyed ? WITH_KEY : 0))
        return keyed ? "the other end has no key" : "the other end has a key";
    return NULL;
}

const char *link_seal_slow(const uint8_t own[LINK_PREAMBLE], const uint8_t theirs[LINK_PREAMBLE])
{
    return !(own[9] & WITH_AES)      ? "this processor has no AES instructions"
           : !(theirs[9] & WITH_AES) ? "the other end's processor has no AES instructions"
                                     : NULL;
}

/* ---- keys ---- */

/* False: a public key of small order, among others. */
static bool share_secret(const struct link_crypto *c, const uint8_t own[32],
                         const uint8_t theirs[32], uint8_t out[32])
{
    size_t n = 32;
    EVP_PKEY *mine = EVP_PKEY_new_raw_private_key_ex(c->lib, "X25519", NULL, own, 32);
    EVP_PKEY *other = EVP_PKEY_new_raw_public_key_ex(c->lib, "X25519", NULL, theirs, 32);
    EVP_PKEY_CTX *x = mine ? EVP_PKEY_CTX_new_from_pkey(c->lib, mine, NULL) : NULL;
    const bool ok = x && other && EVP_PKEY_derive_init(x) > 0 &&
                    EVP_PKEY_derive_set_peer(x, other) > 0 && EVP_PKEY_derive(x, out, &n) > 0 &&
                    n == 32;
    EVP_PKEY_CTX_free(x);
    EVP_PKEY_free(other);
    EVP_PKEY_free(mine);
    return ok;
}

/* BLAKE2b of both preambles and what both share, with the secret as its key. */
static bool make_keys(const struct link_crypto *c, const uint8_t secret[LINK_SECRET],
                      const uint8_t dialled[LINK_PREAMBLE], const uint8_t listening[LINK_PREAMBLE],
                      const uint8_t shared[32], uint8_t out[KEYS])
{
    size_t size = KEYS, n = 0;
    const OSSL_PARAM p[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
                            OSSL_PARAM_construct_end()};
    EVP_MAC_CTX *m = EVP_MAC_CTX_new(c->blake);
    const bool ok = m && EVP_MAC_init(m, secret, LINK_SECRET, p) > 0 &&
                    EVP_MAC_update(m, dialled, LINK_PREAMBLE) > 0 &&
                    EVP_MAC_update(m, listening, LINK_PREAMBLE) > 0 &&
                    EVP_MAC_update(m, shared, 32) > 0 && EVP_MAC_final(m, out, &n, KEYS) > 0 &&
                    n == KEYS;
    EVP_MAC_CTX_free(m);
    return ok;
}

static bool set_key(struct link_seal *s, const EVP_CIPHER *cipher, const uint8_t key[32],
                    bool closes)
{
    s->count = 0;
    s->ctx = EVP_CIPHER_CTX_new();
    return s->ctx && EVP_CipherInit_ex2(s->ctx, cipher, key, NULL, closes, NULL) > 0;
}

bool link_seal_agree(const struct link_crypto *c, const uint8_t secret[LINK_SECRET],
                     const uint8_t own[32], const uint8_t dialled[LINK_PREAMBLE],
                     const uint8_t listening[LINK_PREAMBLE], bool listens, struct link_seal *in,
                     struct link_seal *out)
{
    uint8_t shared[32], key[KEYS];
    const EVP_CIPHER *cipher = link_seal_slow(dialled, listening) ? c->chacha : c->aes;
    bool ok = share_secret(c, own, (listens ? dialled : listening) + PUBLIC_AT, shared) &&
              make_keys(c, secret, dialled, listening, shared, key);
    ok = ok && set_key(in, cipher, listens ? key : key + 32, false) &&
         set_key(out, cipher, listens ? key + 32 : key, true);
    OPENSSL_cleanse(shared, sizeof shared);
    OPENSSL_cleanse(key, sizeof key);
    return ok;
}

void link_seal_release(struct link_seal *s)
{
    EVP_CIPHER_CTX_free(s->ctx);
    s->ctx = NULL;
}

/* ---- pieces ---- */

/* Never the same twice with one key. */
static void next_nonce(struct link_seal *s, uint8_t out[NONCE])
{
    memset(out, 0, NONCE);
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(s->count >> 8 * i);
    s->count++;
}

bool link_seal_close(struct link_seal *s, const uint8_t *in, size_t n, uint8_t *out)
{
    uint8_t nonce[NONCE];
    int k = 0, last = 0;
    next_nonce(s, nonce);
    return EVP_EncryptInit_ex2(s->ctx, NULL, NULL, nonce, NULL) > 0 &&
           EVP_EncryptUpdate(s->ctx, out, &k, in, (int)n) > 0 && (size_t)k == n &&
           EVP_EncryptFinal_ex(s->ctx, out + n, &last) > 0 && !last &&
           EVP_CIPHER_CTX_ctrl(s->ctx, EVP_CTRL_AEAD_GET_TAG, LINK_TAG, out + n) > 0;
}

bool link_seal_open(struct link_seal *s, const uint8_t *in, size_t n, uint8_t *out)
{
    uint8_t nonce[NONCE], tag[LINK_TAG];
    int k = 0, last = 0;
    if (n < LINK_TAG)
        return false;
    n -= LINK_TAG;
    memcpy(tag, in + n, LINK_TAG);
    next_nonce(s, nonce);
    return EVP_DecryptInit_ex2(s->ctx, NULL, NULL, nonce, NULL) > 0 &&
           EVP_CIPHER_CTX_ctrl(s->ctx, EVP_CTRL_AEAD_SET_TAG, LINK_TAG, tag) > 0 &&
           EVP_DecryptUpdate(s->ctx, out, &k, in, (int)n) > 0 && (size_t)k == n &&
           EVP_DecryptFinal_ex(s->ctx, out + n, &last) > 0 && !last;
}
