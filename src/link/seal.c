/* SPDX-License-Identifier: Apache-2.0 */
/* seal - keys of a connection, and sealed pieces: X25519, BLAKE2b, AES-256-GCM where both
 * processors have it, else ChaCha20-Poly1305. */
#include "link/inner.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

static_assert(sizeof(crypto_aead_aes256gcm_state) <= sizeof((struct link_seal *)0)->state,
              "the state of AES fits");
static_assert(crypto_aead_aes256gcm_ABYTES == LINK_TAG &&
                  crypto_aead_chacha20poly1305_ietf_ABYTES == LINK_TAG,
              "a tag has 16 bytes");
static_assert(crypto_aead_aes256gcm_NPUBBYTES == 12 &&
                  crypto_aead_chacha20poly1305_ietf_NPUBBYTES == 12,
              "a nonce has 12 bytes");

enum { NONCE = 12, WIRE_VERSION = 1, WITH_KEY = 1, WITH_AES = 2, PUBLIC_AT = 16 };
static const char magic[8] = {'i', 'n', 'g', 'l', 'e', 'e', 'n', 'd'};

bool link_seal_ready(void)
{
    return sodium_init() >= 0;
}

void link_preamble_make(bool keyed, uint8_t own[32], uint8_t out[LINK_PREAMBLE])
{
    memset(out, 0, LINK_PREAMBLE);
    memcpy(out, magic, sizeof magic);
    out[8] = WIRE_VERSION;
    if (!keyed)
        return;
    out[9] = (uint8_t)(WITH_KEY | (crypto_aead_aes256gcm_is_available() ? WITH_AES : 0));
    randombytes_buf(own, 32);
    (void)crypto_scalarmult_base(out + PUBLIC_AT, own);
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

static void set_key(struct link_seal *s, const uint8_t key[32], bool aes)
{
    memcpy(s->key, key, sizeof s->key);
    s->count = 0;
    s->aes = aes;
    if (aes)
        (void)crypto_aead_aes256gcm_beforenm((crypto_aead_aes256gcm_state *)(void *)s->state,
                                             s->key);
}

bool link_seal_agree(const uint8_t secret[LINK_SECRET], const uint8_t own[32],
                     const uint8_t dialled[LINK_PREAMBLE], const uint8_t listening[LINK_PREAMBLE],
                     bool listens, struct link_seal *in, struct link_seal *out)
{
    uint8_t shared[32], key[64];
    crypto_generichash_state h;
    if (crypto_scalarmult(shared, own, (listens ? dialled : listening) + PUBLIC_AT) != 0)
        return false; /* a point of small order */
    (void)crypto_generichash_init(&h, secret, LINK_SECRET, sizeof key);
    (void)crypto_generichash_update(&h, dialled, LINK_PREAMBLE);
    (void)crypto_generichash_update(&h, listening, LINK_PREAMBLE);
    (void)crypto_generichash_update(&h, shared, sizeof shared);
    (void)crypto_generichash_final(&h, key, sizeof key);
    const bool aes = (dialled[9] & listening[9] & WITH_AES) != 0;
    set_key(listens ? in : out, key, aes);
    set_key(listens ? out : in, key + 32, aes);
    sodium_memzero(shared, sizeof shared);
    sodium_memzero(key, sizeof key);
    return true;
}

/* Never the same twice with one key. */
static void next_nonce(struct link_seal *s, uint8_t out[NONCE])
{
    memset(out, 0, NONCE);
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(s->count >> 8 * i);
    s->count++;
}

void link_seal_close(struct link_seal *s, const uint8_t *in, size_t n, uint8_t *out)
{
    uint8_t nonce[NONCE];
    next_nonce(s, nonce);
    if (s->aes)
        (void)crypto_aead_aes256gcm_encrypt_afternm(
            out, NULL, in, n, NULL, 0, NULL, nonce,
            (const crypto_aead_aes256gcm_state *)(const void *)s->state);
    else
        (void)crypto_aead_chacha20poly1305_ietf_encrypt(out, NULL, in, n, NULL, 0, NULL, nonce,
                                                        s->key);
}

bool link_seal_open(struct link_seal *s, const uint8_t *in, size_t n, uint8_t *out)
{
    uint8_t nonce[NONCE];
    next_nonce(s, nonce);
    if (s->aes)
        return crypto_aead_aes256gcm_decrypt_afternm(
                   out, NULL, NULL, in, n, NULL, 0, nonce,
                   (const crypto_aead_aes256gcm_state *)(const void *)s->state) == 0;
    return crypto_aead_chacha20poly1305_ietf_decrypt(out, NULL, NULL, in, n, NULL, 0, nonce,
                                                     s->key) == 0;
}
