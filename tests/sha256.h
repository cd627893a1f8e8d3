/* sha256 - the hash that test vectors are written with. */
#ifndef INGLE_TESTS_SHA256_H
#define INGLE_TESTS_SHA256_H

#include <stddef.h>

/* Lower-case hex of the first n_hex / 2 bytes, and a 0. */
void sha256_hex(const void *bytes, size_t n, char *hex, size_t n_hex);

#endif
