/*
 * inner - what carries frames: sockets (socket.c), encryption (seal.c), connections (carry.h).
 */
#ifndef INGLE_LINK_INNER_H
#define INGLE_LINK_INNER_H

#include "link/link.h"

/* ---- sockets: not blocking, closed by exec ---- */

/* INGLE_IO: errno says why. */
MUST_CHECK ingle_status link_socket_listen(const struct link_address *a, int *fd, struct err *err);
/* Begins to connect; attempt counts up, for hosts with several addresses.  -1: not this time. */
int link_socket_dial(const struct link_address *a, unsigned attempt, const char **why);
/* What errno says of a connection that cannot be had. */
const char *link_socket_why(int e);
/* -1: nobody is there; *wait: nobody can be taken now (no descriptors). */
int link_socket_accept(int fd, bool *wait);
/* Where it listens, as link_address_parse() takes it. */
void link_socket_name(int fd, char *out, size_t n);

/* ---- encryption ----
 *
 * Both ends say a preamble.  With a key it has a public key for this connection alone; what both
 * make of their keys and of the secret are two keys, one for each direction.  Frames are sealed in
 * pieces with a counter: a piece that is not the next one of a peer that knows the secret does not
 * open. */

enum { LINK_PREAMBLE = 64, LINK_TAG = 16, LINK_PIECE = 64 << 10 };

/* What an end needs of libcrypto; NULL: it cannot be had.  no_aes: as on a processor without. */
struct link_crypto;
struct link_crypto *link_crypto_create(bool no_aes);
void link_crypto_free(struct link_crypto *c);

/* Of one direction; zero: none. */
struct link_seal {
    struct evp_cipher_ctx_st *ctx; /* owned */
    uint64_t count;
};

/* c NULL: without a key.  False: there is no key for this connection. */
MUST_CHECK bool link_preamble_make(const struct link_crypto *c, uint8_t own[32],
                                   uint8_t out[LINK_PREAMBLE]);
/* NULL, or what is wrong with the other end's. */
const char *link_preamble_check(const uint8_t at[LINK_PREAMBLE], bool keyed);
/* NULL: AES; else why not. */
const char *link_seal_slow(const uint8_t own[LINK_PREAMBLE], const uint8_t theirs[LINK_PREAMBLE]);
/* False: it is no key, or there is no memory.  in and out are to be released in any case. */
MUST_CHECK bool link_seal_agree(const struct link_crypto *c, const uint8_t secret[LINK_SECRET],
                                const uint8_t own[32], const uint8_t dialled[LINK_PREAMBLE],
                                const uint8_t listening[LINK_PREAMBLE], bool listens,
                                struct link_seal *in, struct link_seal *out);
void link_seal_release(struct link_seal *s);
/* out has n + LINK_TAG bytes.  False: it cannot be sealed; nothing may be sent. */
MUST_CHECK bool link_seal_close(struct link_seal *s, const uint8_t *in, size_t n, uint8_t *out);
/* out has n - LINK_TAG bytes.  False: it does not open. */
MUST_CHECK bool link_seal_open(struct link_seal *s, const uint8_t *in, size_t n, uint8_t *out);

#endif
