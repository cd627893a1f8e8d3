/* sha256 - the SHA-256 of bytes, whole or piece by piece. */
#ifndef INGLE_BASE_SHA256_H
#define INGLE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_HEX = 64 };

struct sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    uint8_t block[64]; /* the n_bytes % 64 that wait */
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t n);
/* The hash of all that was added; s is used up. */
void sha256_end(struct sha256 *s, uint8_t out[SHA256_BYTES]);

/* The first n_hex (at most 64) digits of the hash of n bytes in lower-case hex, and a 0. */
void sha256_hex(const void *bytes, size_t n, char *hex, size_t n_hex);

#endif
