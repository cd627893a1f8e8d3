/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "server/slots.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/sha256.h"
#include "server/answer.h"
#include "server/fields.h"
#include "server/request.h"
#include "server/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* MAX_KEPT and MAX_KEPT_BYTES: of all users together; the ones that were not used for the longest
 * time go first. */
enum { MAX_NAME = 128, MAX_KEPT = 4096, MAX_KEPT_BYTES = 256 << 20 };

struct slot {
    char *user;
    int id;
    uint64_t used; /* slots.clock when it was last kept or looked at */
    int32_t *ids; /* [n + 1], the last one is none; NULL: nothing was computed here */
    size_t n;
    size_t n_stable; /* of them those that a later prompt begins with; 0: all */
    /* [n_position], where the first ones stand: of a prompt that was shortened; else NULL */
    int32_t *position;
    size_t n_position;
    struct ingle_span *span; /* [n_spans]: media among ids, with references */
    size_t n_spans;
    struct ingle_way way; /* how it was computed; "": as --sparse and --kv-select say */
};

enum action { SAVE, RESTORE, ERASE };

/* What a request wants and what came of it. */
struct task {
    struct slots *slots;
    struct serve *serve;
    struct http_exchange *x; /* held */
    const struct http_request *rq;
    enum action action;
    int id;
    char name[MAX_NAME + 1];
    char file[2][24 + MAX_NAME]; /* its names in the directory: the whole, and what is stable */
    char path[2][64 + MAX_NAME];
    struct slot slot; /* its own */
    struct ingle_session *session;
    size_t n_fetch, n_kept; /* fetch()'s */
    ingle_status status;
    struct ingle_error error;
    double seconds;
    uint64_t n_bytes;
    size_t n_tokens;
};

struct slots {
    int dir; /* a descriptor */
    int n;
    pthread_mutex_t lock;
    /* Sync: lock; each user has a row of slots of its own. */
    struct slot *slot; /* [n_slots] */
    size_t n_slots, cap_slots, n_tokens;
    uint64_t clock;
    atomic_bool busy; /* somebody has all that follows */
    bool started;     /* the thread was, and is to be joined */
    pthread_t thread;
    struct task task;
};

static void release(struct slot *s)
{
    for (size_t i = 0; i < s->n_spans; i++)
        ingle_medium_close(s->span[i].medium);
    mem_free(s->span);
    mem_free(s->user);
    mem_free(s->ids);
    mem_free(s->position);
    *s = (struct slot){0};
}

ingle_status slots_open(struct slots **out, const char *directory, int n_slots, struct err *err)
{
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, INGLE_IO, "--slot-save-path %s: %s", directory, strerror(errno));
    struct slots *s = mem_zalloc(sizeof *s);
    if (!s || pthread_mutex_init(&s->lock, NULL)) {
        mem_free(s);
        (void)close(fd);
        return err_set(err, INGLE_NOMEM, "no memory for slots");
    }
    s->dir = fd;
    s->n = n_slots < SLOTS_MAX ? n_slots : SLOTS_MAX;
    atomic_init(&s->busy, false);
    *out = s;
    return INGLE_OK;
}

void slots_close(struct slots *s)
{
    if (!s)
        return;
    if (s->started)
        (void)pthread_join(s->thread, NULL);
    for (size_t i = 0; i < s->n_slots; i++)
        release(&s->slot[i]);
    mem_free(s->slot);
    pthread_mutex_destroy(&s->lock);
    (void)close(s->dir);
    mem_free(s);
}

/* ---- what a slot holds ---- */

static bool same_user(const struct slot *s, const char *user)
{
    return s->user && user ? strcmp(s->user, user) == 0 : !s->user && !user;
}

/* Sync: s->lock */
static struct slot *find(struct slots *s, int id, const char *user)
{
    for (size_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].id == id && same_user(&s->slot[i], user))
            return &s->slot[i];
    return NULL;
}

/* What it takes of MAX_KEPT_BYTES, in numbers of 4 bytes: with the pixels and samples of media. */
static size_t numbers_of(const struct slot *s)
{
    size_t n = s->n + s->n_position;
    for (size_t i = 0; i < s->n_spans; i++) {
        struct ingle_medium_info info;
        ingle_medium_info(s->span[i].medium, &info);
        n += (size_t)info.used_width * (size_t)info.used_height * 3 / sizeof(int32_t) +
             (size_t)(info.seconds * 16000);
    }
    return n;
}

/* Sync: s->lock */
static void drop(struct slots *s, struct slot *at)
{
    s->n_tokens -= numbers_of(at);
    release(at);
    *at = s->slot[--s->n_slots];
}

/* Sync: s->lock */
static void drop_oldest(struct slots *s)
{
    struct slot *oldest = &s->slot[0];
    for (size_t i = 1; i < s->n_slots; i++)
        if (s->slot[i].used < oldest->used)
            oldest = &s->slot[i];
    drop(s, oldest);
}

/* Slot id of *from's user holds it from now on; takes *from.  Without tokens it holds nothing. */
static void put(struct slots *s, int id, struct slot *from)
{
    pthread_mutex_lock(&s->lock);
    struct slot *before = find(s, id, from->user);
    if (before)
        drop(s, before);
    while (s->n_slots && (s->n_slots >= MAX_KEPT ||
                          (s->n_tokens + numbers_of(from)) * sizeof(int32_t) > MAX_KEPT_BYTES))
        drop_oldest(s);
    if (from->ids && mem_grow(&s->slot, &s->cap_slots, s->n_slots + 1, sizeof *s->slot)) {
        from->id = id;
        from->used = ++s->clock;
        s->n_tokens += numbers_of(from);
        s->slot[s->n_slots++] = *from;
    } else {
        release(from);
    }
    pthread_mutex_unlock(&s->lock);
    *from = (struct slot){0};
}

static bool fill_spans(struct slot *s, const struct ingle_span *span, size_t n)
{
    s->span = n ? mem_calloc(n, sizeof *s->span) : NULL;
    if (n && !s->span)
        return false;
    for (size_t i = 0; i < n; i++) {
        s->span[i] = span[i];
        (void)ingle_medium_ref(span[i].medium);
    }
    s->n_spans = n;
    return true;
}

/* All tokens of *t, one after the other. */
static bool fill(struct slot *s, const char *user, const struct answer_tokens *t)
{
    size_t n = 0;
    s->user = user ? mem_strdup(user) : NULL;
    s->ids = num_add(t->n_prompt, t->n_drawn, &n) ? mem_calloc(n + 1, sizeof *s->ids) : NULL;
    s->position = t->position ? mem_calloc(t->n_prompt + 1, sizeof *s->position) : NULL;
    if (!s->ids || (user && !s->user) || (t->position && !s->position) ||
        !fill_spans(s, t->span, t->n_spans)) {
        release(s);
        return false;
    }
    memcpy(s->ids, t->prompt, t->n_prompt * sizeof *s->ids);
    if (t->position)
        memcpy(s->position, t->position, t->n_prompt * sizeof *s->position);
    s->n_position = t->position ? t->n_prompt : 0;
    if (t->n_drawn)
        memcpy(s->ids + t->n_prompt, t->drawn, t->n_drawn * sizeof *s->ids);
    s->n = n;
    s->n_stable = t->n_stable;
    return true;
}

static bool copy(struct slot *to, const struct slot *from)
{
    to->way = from->way;
    const size_t n = from->position ? from->n_position : from->n;
    return fill(to, from->user,
                &(struct answer_tokens){.prompt = from->ids,
                                        .n_prompt = n,
                                        .drawn = from->ids + n,
                                        .n_drawn = from->n - n,
                                        .position = from->position,
                                        .n_stable = from->n_stable,
                                        .span = from->span,
                                        .n_spans = from->n_spans});
}

void slots_keep(struct slots *s, int id, const char *user, const struct ingle_way *way,
                const struct answer_tokens *t)
{
    struct slot new = {.way = *way};
    if (id >= 0 && id < s->n && fill(&new, user, t))
        put(s, id, &new);
}

/* A copy of what a user's slot holds; false: nothing. */
static bool get_slot(struct slots *s, int id, const char *user, struct slot *out)
{
    pthread_mutex_lock(&s->lock);
    struct slot *from = find(s, id, user);
    const bool ok = from && copy(out, from);
    if (ok)
        from->used = ++s->clock;
    pthread_mutex_unlock(&s->lock);
    return ok;
}

/* ---- parts of an operation ---- */

/*
 * What concerns the cache runs on the scheduler's thread, between two steps; files are written and
 * read on the slots' own, while answers go on.  Each returns t->status.
 */
static ingle_status on_scheduler(struct task *t, void (*fn)(struct ingle_engine *e, void *arg))
{
    ingle_scheduler_call(t->serve->scheduler, fn, t);
    return t->status;
}

static void open_session(struct ingle_engine *engine, void *arg)
{
    struct task *t = arg;
    t->status = ingle_session_open(&t->session, engine, &t->error);
    if (!t->status)
        ingle_session_set_user(t->session, t->slot.user);
    for (int k = 0; k < INGLE_WAYS && !t->status; k++)
        if (t->slot.way.text[k][0])
            t->status = ingle_session_set_way(t->session, (enum ingle_way_kind)k,
                                              t->slot.way.text[k], &t->error);
    if (!t->status && t->slot.position)
        t->status = ingle_session_set_positions(t->session, t->slot.position,
                                                (int64_t)t->slot.n_position, &t->error);
}

static void close_session(struct ingle_engine *engine, void *arg)
{
    const struct task *t = arg;
    (void)engine;
    ingle_session_close(t->session);
}

static void cut(struct ingle_engine *engine, void *arg)
{
    struct task *t = arg;
    (void)engine;
    t->status = ingle_session_rewind(t->session, (int64_t)t->n_kept, &t->error);
}

/* What the cache has of the first n_fetch tokens; n_kept: how many.  A sync never takes its last
 * token from there: it gets one more. */
static ingle_status fetch(struct task *t)
{
    struct ingle_reuse reuse;
    const int64_t n = num_min((int64_t)t->n_fetch + 1, t->serve->engine_info.n_ctx);
    size_t n_spans = 0;
    while (n_spans < t->slot.n_spans &&
           t->slot.span[n_spans].start + t->slot.span[n_spans].n <= n)
        n_spans++;
    t->status = ingle_scheduler_sync_media(t->serve->scheduler, t->session, t->slot.ids, n,
                                           t->slot.span, n_spans, &reuse, &t->error);
    t->n_kept = t->status ? 0 : (size_t)reuse.kept;
    return t->status ? t->status : on_scheduler(t, cut);
}

static void renew(struct ingle_engine *engine, void *arg)
{
    struct task *t = arg;
    const float *logits;
    (void)engine;
    t->status = ingle_session_finish(t->session, &logits, &t->error);
}

/* Once more where a card is lost: what lay on it is computed first. */
static void write_file(struct task *t, const char *path)
{
    t->status = ingle_session_save(t->session, path, &t->error);
    if (t->status == INGLE_LOST && !on_scheduler(t, renew))
        t->status = ingle_session_save(t->session, path, &t->error);
}

/* Where a later prompt begins, if that is not the end. */
static void save_stable(struct task *t, size_t whole)
{
    t->n_fetch = t->slot.n_stable;
    t->n_kept = 0;
    if (t->n_fetch && t->n_fetch < whole && fetch(t))
        return;
    if (t->n_kept && t->n_kept < whole)
        write_file(t, t->path[1]);
    else
        (void)unlinkat(t->slots->dir, t->file[1], 0); /* what another conversation has left */
}

static void save(struct task *t)
{
    t->n_fetch = t->slot.n;
    if (fetch(t))
        return;
    const size_t whole = t->n_kept;
    if (!whole) {
        t->error = (struct ingle_error){.status = INGLE_NOTFOUND,
                                        .text = "what the slot computed is no longer in the cache"};
        t->status = INGLE_NOTFOUND;
        return;
    }
    write_file(t, t->path[0]);
    if (t->status)
        return;
    save_stable(t, whole);
    t->slot.n = whole;
}

static void remember(struct ingle_engine *engine, void *arg)
{
    struct task *t = arg;
    (void)engine;
    t->n_kept = (size_t)ingle_session_length(t->session);
    t->status = ingle_session_remember(t->session, &t->error);
}

static bool load(struct task *t, const char *path)
{
    t->status = ingle_scheduler_load(t->serve->scheduler, t->session, path, &t->error);
    return !t->status && !on_scheduler(t, remember);
}

static void restore(struct task *t)
{
    size_t stable = 0;
    int64_t n;
    struct slot now = {0};
    if (faccessat(t->slots->dir, t->file[1], F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!load(t, t->path[1]))
            return;
        stable = t->n_kept;
    }
    if (!load(t, t->path[0]))
        return;
    const int32_t *ids = ingle_session_tokens(t->session, &n);
    ingle_session_way(t->session, &now.way);
    int32_t *position =
        ingle_session_skipped(t->session) ? mem_calloc((size_t)n + 1, sizeof *position) : NULL;
    for (int64_t i = 0; position && i < n; i++)
        position[i] = (int32_t)ingle_session_position(t->session, i);
    struct ingle_span *span = NULL;
    size_t n_spans = 0;
    t->status = ingle_session_spans(t->session, &span, &n_spans, &t->error);
    /* then the slot holds nothing */
    const bool lost = t->status || (ingle_session_skipped(t->session) && !position);
    if (!lost &&
        fill(&now, t->slot.user,
             &(struct answer_tokens){.prompt = ids,
                                     .n_prompt = (size_t)n,
                                     .position = position,
                                     .n_stable = stable,
                                     .span = span,
                                     .n_spans = n_spans})) {
        release(&t->slot);
        t->slot = now;
    }
    for (size_t i = 0; i < n_spans; i++)
        ingle_medium_close(span[i].medium);
    ingle_free(span);
    mem_free(position);
}

static void transfer(struct task *t)
{
    const uint64_t start = clock_now();
    if (on_scheduler(t, open_session))
        return;
    (t->action == SAVE ? save : restore)(t);
    ingle_scheduler_call(t->serve->scheduler, close_session, t);
    t->seconds = (double)(clock_now() - start) * 1e-9;
}

/* ---- one operation ---- */

/* The same name of two users is two files.  The directory is named by its descriptor, so that
 * nothing that is done to its path leads elsewhere; the library follows no links in it. */
static void name_file(struct task *t)
{
    struct sha256 h;
    uint8_t hash[SHA256_BYTES];
    char prefix[20] = "";
    if (t->slot.user) {
        sha256_init(&h);
        sha256_add(&h, t->slot.user, strlen(t->slot.user));
        sha256_end(&h, hash);
        for (int i = 0; i < 8; i++)
            snprintf(prefix + 2 * i, 3, "%02x", hash[i]);
        prefix[16] = '@';
    }
    for (int i = 0; i < 2; i++) {
        snprintf(t->file[i], sizeof t->file[i], "%s%s%s", i ? "." : "", prefix, t->name);
        snprintf(t->path[i], sizeof t->path[i], "/proc/self/fd/%d/%s", t->slots->dir, t->file[i]);
    }
}

/* Of both files; false: the first one is not there. */
static bool find_file(struct task *t)
{
    struct stat st;
    t->n_bytes = 0;
    for (int i = 0; i < 2; i++)
        if (!fstatat(t->slots->dir, t->file[i], &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
            t->n_bytes += (uint64_t)st.st_size;
        else if (!i)
            return false;
    return true;
}

static void put_done(const struct task *t, struct str *out)
{
    const bool saved = t->action == SAVE;
    write_open(out, '{');
    write_member_int(out, "id_slot", t->id);
    write_member(out, "filename", t->name);
    write_member_int(out, saved ? "n_saved" : "n_restored", (int64_t)t->n_tokens);
    write_key(out, saved ? "n_written" : "n_read");
    write_uint(out, t->n_bytes);
    write_key(out, "timings");
    write_open(out, '{');
    write_member_number(out, saved ? "save_ms" : "restore_ms", t->seconds * 1e3);
    write_close(out, '}');
    write_close(out, '}');
}

/* The text names the file as the client does. */
static void fail(struct task *t)
{
    struct serve_error e = serve_error_of(t->status);
    const char *text = t->error.text;
    if (t->action == SAVE && t->status == INGLE_LIMIT) /* a full disk: not the request's fault */
        e = serve_error_of(INGLE_IO);
    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(t->path[i]);
        if (strncmp(text, t->path[i], n) == 0) {
            serve_fail(t->x, t->rq, &e, "%s%s%s", i ? "." : "", t->name, text + n);
            return;
        }
    }
    serve_fail(t->x, t->rq, &e, "%s", text);
}

static void *work(void *arg)
{
    struct slots *s = arg;
    struct task task = s->task, *t = &task;
    struct str out;
    transfer(t);
    if (!t->status && t->action == RESTORE) {
        struct slot now = t->slot;
        t->slot = (struct slot){0};
        t->n_tokens = now.n;
        put(s, t->id, &now);
    } else {
        t->n_tokens = t->slot.n;
    }
    atomic_store(&s->busy, false); /* a client that has its reply may come at once */
    if (t->status) {
        fail(t);
    } else {
        (void)find_file(t);
        str_init(&out);
        put_done(t, &out);
        serve_json(t->x, t->rq, &out);
    }
    release(&t->slot);
    http_release(t->x);
    return NULL;
}

/* s->busy is this task's. */
static void start(struct slots *s, struct task *t)
{
    if (s->started)
        (void)pthread_join(s->thread, NULL);
    s->started = false;
    s->task = *t;
    http_hold(t->x);
    if (pthread_create(&s->thread, NULL, work, s) == 0) {
        s->started = true;
        return;
    }
    serve_fail(t->x, t->rq, &(struct serve_error){.status = 500}, "no thread for a slot");
    release(&s->task.slot);
    http_release(t->x);
    atomic_store(&s->busy, false);
}

/* ---- the request ---- */

static bool is_name(const char *s)
{
    const size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n && n <= MAX_NAME && !s[n] && s[0] != '.';
}

static void read_name(struct task *t, struct fault *f)
{
    struct str name;
    struct json_object *body = f->kind ? NULL : request_body(t->rq->body, t->rq->n_body, f);
    str_init(&name);
    if (body)
        request_get_text(body, "filename", 4096, &name, f);
    const bool there = body && request_get(body, "filename");
    json_object_put(body);
    if (!f->kind && (there || t->action != ERASE) &&
        (!is_name(name.at) || strlen(name.at) != name.n))
        request_fault(
            f, FAULT_REQUEST, "filename",
            "'filename' is no name of 1 to %d letters, digits, _ - and ., which is not first",
            (int)MAX_NAME);
    if (!f->kind)
        snprintf(t->name, sizeof t->name, "%s", name.at);
    str_release(&name);
}

static void read_id(struct task *t, struct fault *f)
{
    const char *at = serve_path(t->rq) + strlen("/slots/");
    char *end;
    const long id = strtol(at, &end, 10);
    if (*at < '0' || *at > '9' || *end || id >= t->slots->n)
        request_fault(f, FAULT_REQUEST, "id", "slot '%.40s' is none of 0 to %d", at,
                      t->slots->n - 1);
    t->id = f->kind ? 0 : (int)id;
}

static void read_task(struct task *t, struct fault *f)
{
    static const char *const words[] = {"save", "restore", "erase"};
    const char *action = http_request_query(t->rq, "action");
    size_t i = 0;
    while (i < 3 && !(action && strcmp(action, words[i]) == 0))
        i++;
    if (i == 3)
        request_fault(f, FAULT_REQUEST, "action", "'action' is '%.40s', not save, restore or erase",
                      action ? action : "");
    t->action = (enum action)i;
    read_id(t, f);
    if (t->action != ERASE || t->rq->n_body)
        read_name(t, f);
}

static const char *user_of(const struct http_request *rq)
{
    return rq->user && *rq->user ? rq->user : NULL;
}

static void erase(struct task *t)
{
    struct slot old = {0};
    struct str out;
    if (get_slot(t->slots, t->id, user_of(t->rq), &old)) {
        struct slot none = {.user = old.user ? mem_strdup(old.user) : NULL};
        if (none.user || !old.user)
            put(t->slots, t->id, &none);
    }
    str_init(&out);
    write_open(&out, '{');
    write_member_int(&out, "id_slot", t->id);
    write_member_int(&out, "n_erased", (int64_t)old.n);
    write_close(&out, '}');
    serve_json(t->x, t->rq, &out);
    release(&old);
}

/* What is there to be saved, or into what is restored; false: answered. */
static bool prepare(struct task *t)
{
    const char *user = user_of(t->rq);
    if (t->action == SAVE && !get_slot(t->slots, t->id, user, &t->slot)) {
        serve_fail(t->x, t->rq, &(struct serve_error){.status = 404},
                   "slot %d has computed nothing yet", t->id);
        return false;
    }
    if (t->action == RESTORE && user && !(t->slot.user = mem_strdup(user))) {
        serve_fail(t->x, t->rq, &(struct serve_error){.status = 500}, "out of memory");
        return false;
    }
    name_file(t);
    if (t->action == RESTORE && !find_file(t)) {
        serve_fail(t->x, t->rq, &(struct serve_error){.status = 404, .param = "filename"},
                   "there is no file '%s'", t->name);
        release(&t->slot);
        return false;
    }
    return true;
}

void slots_answer(struct slots *s, struct serve *v, struct http_exchange *x,
                  const struct http_request *rq)
{
    struct task t = {.slots = s, .serve = v, .x = x, .rq = rq};
    struct fault f = serve_watch(x);
    read_task(&t, &f);
    if (f.kind) {
        serve_fail(x, rq, &(struct serve_error){.status = f.status, .param = f.param}, "%s",
                   f.message);
    } else if (t.action == ERASE) {
        erase(&t);
    } else if (atomic_exchange(&s->busy, true)) {
        const struct serve_error e = {.status = 503, .retry_seconds = 1};
        serve_fail(x, rq, &e, "another slot is being saved or restored");
    } else if (prepare(&t)) {
        start(s, &t);
    } else {
        atomic_store(&s->busy, false);
    }
}
