/*
 * router - `ingle serve --models`: several models behind one address.
 *
 * One process a model: this program again, as `ingle serve` on a socket in a private directory,
 * started when a request names its model and ended when another one needs the room, when it was
 * idle for `ttl` seconds, or on demand.  Requests are passed on as they are and answers as they
 * come.  The thread of the router does all of it (router.c): children (child.c), who runs and who
 * waits (start.c), requests (proxy.c).  Keys, limits and the address are those of a server with one
 * model (server/address.h).  docs/use/router.md is the manual.
 */
#ifndef INGLE_ROUTER_ROUTER_H
#define INGLE_ROUTER_ROUTER_H

#include "base/err.h"
#include "base/str.h"
#include "ingle/ingle.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct router;
struct server_info;

/* Sets an option of `ingle serve` by a name of ours or of another engine ("ctx", "c", "ctx-size");
 * value "" or "true": a flag.  INGLE_NOTFOUND: there is no such option. */
typedef ingle_status router_set_fn(void *arg, struct ingle_config *config, const char *key,
                                   const char *value, struct err *err);

struct router_options {
    const int *listener; /* [n_listeners], as server_options has them */
    int n_listeners;
    const struct ingle_config *config; /* borrowed until router_close() */
    /* reports, and the lines of the children: kind "model", subject the model */
    struct ingle_callbacks callbacks;
    char *const *environment; /* NAME=VALUE ... NULL: what children get */
    const char *program;      /* what is executed for a child, e.g. "/proc/self/exe" */
    const char *directory;    /* where the private directory with the sockets is made */
    router_set_fn *set;
    void *arg; /* for set */
};

/* Reads the models and their options, opens the address, and answers from then on; those to be
 * preloaded start. */
MUST_CHECK ingle_status router_open(struct router **out, const struct router_options *o,
                                    struct err *err);
/* As server_set_away() and server_set_lingering(). */
void router_set_away(struct router *r, bool away);
void router_set_lingering(struct router *r);
/* As server_renew_keys(). */
bool router_renew_keys(struct router *r);
/* No new requests; waits for the running ones as server_drain() does. */
void router_drain(struct router *r);
/* Ends the children, too. */
void router_close(struct router *r);
/* url, more, n_keys, n_running; model is "N models". */
void router_describe(struct router *r, struct server_info *out);

/* ---- presets: which models there are ---- */

struct router_preset {
    char *id;
    struct ingle_config *config; /* what its section and [*] say; "model" is the path */
    char *where;                 /* "FILE:LINE" of its section, or the folder */
};
struct router_presets {
    struct router_preset *at; /* [n] */
    size_t n, cap;
    /* A line each, "FILE:LINE: ..."; of wrong ones the first ROUTER_MAX_PROBLEMS. */
    struct str problems, warnings;
    size_t n_problems, n_warnings;
};
enum { ROUTER_MAX_PROBLEMS = 50 };
/* Appends the models of a file of presets, or of a folder.  Sections without a `model` give options
 * to one that is there already.  A file is read to its end: all that is wrong is in p->problems,
 * the first is the error.  What need not be wrong, as a file that is not there yet, is in
 * p->warnings.  Ended by router_presets_release() also after a failure. */
MUST_CHECK ingle_status router_presets_add(struct router_presets *p, const char *path,
                                           router_set_fn *set, void *arg, struct err *err);
/* The same for a text that comes from `name`. */
MUST_CHECK ingle_status router_presets_text(struct router_presets *p, const char *name,
                                            const char *text, size_t n, router_set_fn *set,
                                            void *arg, struct err *err);
/* Whether no name is that of two models; otherwise the problem is added. */
MUST_CHECK ingle_status router_presets_check(struct router_presets *p, struct err *err);
void router_presets_release(struct router_presets *p);

#endif
