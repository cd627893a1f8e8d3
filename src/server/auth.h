/*
 * auth - who may ask: API keys, the names under which the server may be reached, and the web
 * sites whose pages may use it.
 */
#ifndef INGLE_SERVER_AUTH_H
#define INGLE_SERVER_AUTH_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>

struct auth;

MUST_CHECK ingle_status auth_open(struct auth **out, struct err *err);
void auth_close(struct auth *a);

/* Adds the keys of a file that nobody but its owner may read (and of root's files root's group, or
 * one of this process): a key or name:key a line, '#' begins a comment.  Only hashes are kept. */
MUST_CHECK ingle_status auth_add_keys(struct auth *a, const char *path, struct err *err);
/* One key, as a line of such a file. */
MUST_CHECK ingle_status auth_add_key(struct auth *a, const char *text, struct err *err);
MUST_CHECK ingle_status auth_add_host(struct auth *a, const char *name, struct err *err);
/* origins: "https://a.example,https://b.example", or "*". */
MUST_CHECK ingle_status auth_add_origins(struct auth *a, const char *origins, struct err *err);

/* The keys of `from` in place of those of a, which `from` has then.  Any thread may ask for keys
 * meanwhile; names of removed keys stay valid. */
MUST_CHECK ingle_status auth_take_keys(struct auth *a, struct auth *from, struct err *err);
size_t auth_n_keys(struct auth *a);
/* The name of the key that the headers carry (Authorization: Bearer, or X-Api-Key; NULL: not
 * there), or NULL if it is none of ours.  Takes the same time for any wrong key. */
const char *auth_key(struct auth *a, const char *authorization, const char *x_api_key);

/* "N": the highest priority of requests; "NAME=N": of those of a key.  INGLE_ARG: it is neither, or
 * no key is called so. */
MUST_CHECK ingle_status auth_add_priority(struct auth *a, const char *text, struct err *err);
/* Of requests with this key ("": there are no keys).  Unless something else was said, 10 where
 * there is one user and 0 where there are several: nobody goes before the others' shares. */
int auth_priority(struct auth *a, const char *key);

/* From now on priorities may name anybody, because another server has checked the keys and sends
 * their names. */
void auth_trust(struct auth *a);
bool auth_trusts(const struct auth *a);
/* A copy of such a name that lives as long as a; NULL: no memory, too many, or too long.  One
 * thread. */
const char *auth_user(struct auth *a, const char *name);

/* Whether a request with this Host header may be answered: a browser that was lured to a name
 * that points here sends that name.  Addresses and localhost are always fine. */
bool auth_host(const struct auth *a, const char *host);
/* Whether a page of this origin may use the server: its own pages, and the listed ones. */
bool auth_origin(const struct auth *a, const char *origin, const char *host);
/* What Access-Control-Allow-Origin says to it, or NULL. */
const char *auth_cors(const struct auth *a, const char *origin);

#endif
