/* SPDX-License-Identifier: Apache-2.0 */
#include "server/streams.h"

#include "base/mem.h"
#include "base/str.h"
#include "server/replica.h"
#include "server/serve.h"
#include "server/tape.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *next;
    struct str user, name;
    struct tape *tape; /* a reference */
};

struct streams {
    struct streams_options o;
    struct tapes *tapes;
    pthread_mutex_t lock;
    struct entry *first; /* Sync: lock; the newest */
    size_t n;            /* Sync: lock */
};

ingle_status streams_open(struct streams **out, const struct streams_options *o, struct err *err)
{
    struct streams *s = mem_zalloc(sizeof *s);
    if (!s || pthread_mutex_init(&s->lock, NULL)) {
        mem_free(s);
        return err_set(err, INGLE_NOMEM, "no memory for resumable streams");
    }
    s->o = *o;
    const ingle_status st =
        tape_open_all(&s->tapes, o->n_bytes, o->unread, o->keepalive_seconds, err);
    if (st) {
        streams_close(s);
        return st;
    }
    *out = s;
    return INGLE_OK;
}

static void free_entry(struct entry *e)
{
    if (!e)
        return;
    tape_unref(e->tape);
    str_release(&e->user);
    str_release(&e->name);
    mem_free(e);
}

void streams_close(struct streams *s)
{
    if (!s)
        return;
    while (s->first) {
        struct entry *e = s->first;
        s->first = e->next;
        free_entry(e);
    }
    tape_close_all(s->tapes);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

void streams_tick(struct streams *s)
{
    if (s)
        tape_tick(s->tapes);
}

struct tape *streams_create(struct streams *s) { return tape_create(s->tapes, true); }

/* With the lock held. */
static struct entry **find(struct streams *s, const char *user, const char *name)
{
    struct entry **at = &s->first;
    while (*at && (strcmp((*at)->user.at, user) != 0 || strcmp((*at)->name.at, name) != 0))
        at = &(*at)->next;
    return at;
}

static struct entry *take_out(struct streams *s, struct entry **at)
{
    struct entry *e = *at;
    if (e) {
        *at = e->next;
        s->n--;
    }
    return e;
}

bool streams_add(struct streams *s, const char *user, const char *name, struct tape *t)
{
    struct entry *e = mem_zalloc(sizeof *e), *old, *oldest = NULL;
    if (!e)
        return false;
    str_init(&e->user);
    str_init(&e->name);
    str_adds(&e->user, user);
    str_adds(&e->name, name);
    e->tape = tape_ref(t);
    if (!str_ok(&e->user) || !str_ok(&e->name)) {
        free_entry(e);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    old = take_out(s, find(s, user, name));
    if (s->n >= s->o.n) {
        struct entry **at = &s->first;
        while ((*at)->next)
            at = &(*at)->next;
        oldest = take_out(s, at);
    }
    e->next = s->first;
    s->first = e;
    s->n++;
    pthread_mutex_unlock(&s->lock);
    if (old)
        tape_cancel(old->tape);
    free_entry(old);
    free_entry(oldest);
    return true;
}

struct tape *streams_find(struct streams *s, const char *user, const char *name)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *e = *find(s, user, name);
    struct tape *t = e ? tape_ref(e->tape) : NULL;
    pthread_mutex_unlock(&s->lock);
    return t;
}

void streams_remove(struct streams *s, const char *user, const char *name)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = take_out(s, find(s, user, name));
    pthread_mutex_unlock(&s->lock);
    if (e)
        tape_cancel(e->tape);
    free_entry(e);
}

/* ---- endpoints ---- */

static const char *user_of(const struct http_request *rq) { return rq->user ? rq->user : ""; }

/* The name that the query has; NULL: x has its answer. */
static const char *name_of(const struct serve *v, struct http_exchange *x,
                           const struct http_request *rq)
{
    const char *name = http_request_query(rq, "conv_id");
    if (!v->streams) {
        serve_fail(x, rq, &(struct serve_error){.status = 501, .no_retry = true},
                   "started with --limit resumable=0");
        return NULL;
    }
    if (!name || !*name || strlen(name) > STREAMS_MAX_NAME) {
        serve_fail(x, rq, &(struct serve_error){.status = 400, .param = "conv_id"},
                   "'conv_id' has %zu bytes, outside 1 to %d", name ? strlen(name) : 0,
                   (int)STREAMS_MAX_NAME);
        return NULL;
    }
    return name;
}

static bool read_from(const char *text, int64_t *out)
{
    char *end = NULL;
    *out = 0;
    if (!text)
        return true;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

void streams_get(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    const char *name = name_of(v, x, rq), *text = http_request_query(rq, "from");
    int64_t from;
    if (!name)
        return;
    struct tape *t = streams_find(v->streams, user_of(rq), name);
    char words[REPLICA_WORDS];
    const bool foreign =
        v->replica && replica_is_foreign(v->replica, name, strlen(name), words);
    if (!t)
        serve_fail(x, rq, &(struct serve_error){.status = 404, .code = "not_found"},
                   "there is no stream of conversation '%.100s' (any more)%s", name,
                   foreign ? words : "");
    else if (!read_from(text, &from))
        serve_fail(x, rq, &(struct serve_error){.status = 400, .param = "from"},
                   "'from' is '%.40s', not a number of bytes", text);
    else if (!tape_listen_from(t, x, from))
        serve_fail(x, rq, &(struct serve_error){.status = 400, .param = "from", .no_retry = true},
                   "the stream has no byte %lld (any more)", (long long)from);
    tape_unref(t);
}

void streams_delete(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    const char *name = name_of(v, x, rq);
    if (!name)
        return;
    streams_remove(v->streams, user_of(rq), name);
    http_reply(x, 204, "text/plain", "", 0);
}
