/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes that come from the disk while other answers run, and sessions that are saved and loaded.
 * A gate stands where files are read and written, so that it lasts as long as a test wants. */
#define _DEFAULT_SOURCE
#include "unit/door.h"

#include "kv/store_file.h"
#include "session/session.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    N = 1500,
    TOKENS = 12,
    STREAM_TOKENS = 2000,
    STREAM_US = 5000,
    SLOTS = 4,
    STEPS = 20,
    MOST_S = 240
};
static const char v4[] = "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf";

/* ---- waits have a bound ---- */

static struct timespec bound(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += MOST_S;
    return t;
}

/* Other threads are somewhere: there is no going on. */
static void too_long(const char *what)
{
    fprintf(stderr, "%s: not within %d s\n", what, MOST_S);
    abort();
}

/* ---- the gate ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;
    int n_waits, n_reads; /* at the gate; files */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void pass_gate(bool begins)
{
    pthread_mutex_lock(&gate.lock);
    gate.n_reads += begins;
    gate.n_waits++;
    pthread_cond_broadcast(&gate.changed);
    while (gate.closed)
        pthread_cond_wait(&gate.changed, &gate.lock);
    gate.n_waits--;
    pthread_mutex_unlock(&gate.lock);
}

ingle_status __real_kv_file_read_pages(const struct kv_file *f, const struct kv_spec *s,
                                       uint64_t first, uint64_t n, uint8_t *const *to,
                                       struct err *err);
ingle_status __wrap_kv_file_read_pages(const struct kv_file *f, const struct kv_spec *s,
                                       uint64_t first, uint64_t n, uint8_t *const *to,
                                       struct err *err);
ingle_status __wrap_kv_file_read_pages(const struct kv_file *f, const struct kv_spec *s,
                                       uint64_t first, uint64_t n, uint8_t *const *to,
                                       struct err *err)
{
    pass_gate(!first);
    return __real_kv_file_read_pages(f, s, first, n, to, err);
}

ingle_status __real_kv_file_write(int dir, const char *name, struct kv_file_out *o,
                                  struct err *err);
ingle_status __wrap_kv_file_write(int dir, const char *name, struct kv_file_out *o,
                                  struct err *err);
ingle_status __wrap_kv_file_write(int dir, const char *name, struct kv_file_out *o, struct err *err)
{
    pass_gate(false);
    return __real_kv_file_write(dir, name, o, err);
}

static void set_gate(bool closed)
{
    pthread_mutex_lock(&gate.lock);
    gate.closed = closed;
    gate.n_reads = 0;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* Until somebody stands at the gate. */
static void wait_gate(void)
{
    const struct timespec until = bound();
    pthread_mutex_lock(&gate.lock);
    while (!gate.n_waits)
        if (pthread_cond_timedwait(&gate.changed, &gate.lock, &until))
            too_long("nobody comes to the gate");
    pthread_mutex_unlock(&gate.lock);
}

/* ---- the store's look ---- */

/* While it is held the store looks at its directory; then so many times more. */
static struct {
    atomic_bool held;
    atomic_int more;
} look;

bool __real_session_runner_look(struct runner *r);
bool __wrap_session_runner_look(struct runner *r);
bool __wrap_session_runner_look(struct runner *r)
{
    return __real_session_runner_look(r) && !atomic_load(&look.held);
}

bool __real_session_runner_looks(const struct runner *r);
bool __wrap_session_runner_looks(const struct runner *r);
bool __wrap_session_runner_looks(const struct runner *r)
{
    return atomic_load(&look.held) || atomic_fetch_sub(&look.more, 1) > 0 ||
           __real_session_runner_looks(r);
}

/* ---- patience ---- */

/* Tests say when it is over. */
static atomic_bool stuck;

bool __real_kv_store_is_stuck(const struct kv_store *s);
bool __wrap_kv_store_is_stuck(const struct kv_store *s);
bool __wrap_kv_store_is_stuck(const struct kv_store *s)
{
    (void)s;
    return atomic_load(&stuck);
}

/* ---- requests ---- */

struct place {
    char dir[64];
    const char *model;
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_scheduler *s;
    int32_t *ids; /* [N] */
    int32_t want[TOKENS];
};

struct asked {
    struct ingle_request *r;
    int32_t id[STREAM_TOKENS];
    int64_t n;
    struct ingle_reuse reuse;
    enum ingle_finish why;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_stream;
    bool begun, done; /* Sync: lock */
};

static void on_begin(void *arg, const struct ingle_reuse *reuse)
{
    struct asked *a = arg;
    assert_false(a->begun);
    a->begun = true;
    a->reuse = *reuse;
}

static int on_token(void *arg, int index, const struct ingle_drawn *t)
{
    struct asked *a = arg;
    (void)index;
    assert_true(a->begun && a->n < STREAM_TOKENS);
    a->id[a->n++] = t->id;
    if (a->is_stream)
        usleep(STREAM_US); /* it lasts longer than this test may be kept waiting */
    return 0;
}

static void on_end(void *arg, int index, enum ingle_finish why, const struct ingle_error *e)
{
    struct asked *a = arg;
    (void)index, (void)e;
    a->why = why;
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    struct asked *a = arg;
    (void)usage;
    pthread_mutex_lock(&a->lock);
    a->done = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static struct asked *ask(struct place *p, int64_t n_prompt, int64_t max_tokens, double deadline)
{
    struct asked *a = calloc(1, sizeof *a);
    struct ingle_request_options o = {.prompt = p->ids,
                                      .n_prompt = n_prompt,
                                      .max_tokens = max_tokens,
                                      .ignore_end = true,
                                      .deadline_seconds = deadline,
                                      .begin = on_begin,
                                      .token = on_token,
                                      .end = on_end,
                                      .done = on_done,
                                      .arg = a};
    assert_non_null(a);
    a->is_stream = max_tokens == STREAM_TOKENS;
    ingle_sampling_defaults(p->m, &o.sampling);
    o.sampling.temperature = 0;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    must(ingle_scheduler_submit(p->s, &o, &a->r, NULL, &error));
    return a;
}

static void wait_done(struct asked *a)
{
    const struct timespec until = bound();
    pthread_mutex_lock(&a->lock);
    while (!a->done)
        if (pthread_cond_timedwait(&a->changed, &a->lock, &until))
            too_long("a request does not end");
    pthread_mutex_unlock(&a->lock);
}

/* As wait_done().  A directory that changed shortly before it was read is read again by the thread
 * at the gate, and a request waits for that: then the gate opens for a moment. */
static void wait_done_at_gate(struct asked *a)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    int late = 0;
    pthread_mutex_lock(&a->lock);
    while (!a->done && !late)
        late = pthread_cond_timedwait(&a->changed, &a->lock, &until);
    pthread_mutex_unlock(&a->lock);
    if (late)
        set_gate(false);
    wait_done(a);
    if (late)
        set_gate(true);
}

static void check(const struct place *p, struct asked *a, int64_t from_disk)
{
    wait_done(a);
    assert_int_equal(a->why, INGLE_FINISH_LENGTH);
    assert_int_equal(a->n, TOKENS);
    assert_memory_equal(a->id, p->want, sizeof p->want);
    assert_int_equal(a->reuse.from_disk, from_disk);
    free(a);
}

static void check_end(struct asked *a, enum ingle_finish why)
{
    wait_done(a);
    assert_int_equal(a->why, why);
    assert_true(!a->begun && !a->n);
    free(a);
}

/* ---- places ---- */

/* small: pages for one session. */
static void open_place(struct place *p, bool small)
{
    const struct ingle_engine_options o = {.store = p->dir[0] ? p->dir : NULL,
                                           .store_tokens = 64,
                                           .threads = 2,
                                           .restore_every = 512,
                                           .n_ctx = small ? 2304 : 4096,
                                           .n_sessions = small ? 1 : 3,
                                           .cache_bytes = small ? 1 << 20 : 0};
    const struct ingle_scheduler_options so = {.max_running = SLOTS};
    must(ingle_model_open(&p->m, p->model, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, &o, &error));
    must(ingle_scheduler_open(&p->s, p->e, &so, &error));
}

static void close_place(struct place *p)
{
    ingle_scheduler_close(p->s);
    set_gate(false);
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

static void no_op(struct ingle_engine *e, void *arg)
{
    (void)e, (void)arg;
}

/* Of now: behind what the thread does. */
static struct ingle_scheduler_status status_of(const struct place *p)
{
    struct ingle_scheduler_status t;
    ingle_scheduler_call(p->s, no_op, NULL);
    ingle_scheduler_status(p->s, &t, NULL, 0);
    return t;
}

/* A store with the prompt's first 1,024 and 1,500 tokens and what begins it, told by a machine
 * without one. */
static void make_place(struct place *p, const char *model)
{
    struct ingle_model_info info;
    *p = (struct place){.model = model, .ids = calloc(N, sizeof(int32_t))};
    open_place(p, false);
    ingle_model_info(p->m, &info);
    for (int i = 0; i < N; i++)
        p->ids[i] = (int32_t)(info.n_vocab / 8 + i * 7919 % (info.n_vocab / 2));
    struct asked *a = ask(p, N, TOKENS, 0);
    wait_done(a);
    assert_int_equal(a->n, TOKENS);
    memcpy(p->want, a->id, sizeof p->want);
    free(a);
    close_place(p);
    strcpy(p->dir, "/tmp/ingle-restore-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    open_place(p, false);
    a = ask(p, N, 0, 0);
    wait_done(a);
    free(a);
    close_place(p);
    open_place(p, false);
}

static void damage(const char *path)
{
    const int fd = open(path, O_RDWR);
    char c;
    assert_true(fd >= 0);
    const off_t at = lseek(fd, 0, SEEK_END) - 100;
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c = (char)~c;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

static void remove_file(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

/* Calls fn for the files of the store that are for so many tokens, or 0: all. */
static void files(const struct place *p, int64_t n_tokens, void (*fn)(const char *path))
{
    char path[512], end[32];
    DIR *d = opendir(p->dir);
    assert_non_null(d);
    snprintf(end, sizeof end, ".%lld.kv", (long long)n_tokens);
    for (const struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", p->dir, e->d_name);
        if (e->d_name[0] != '.' && (!n_tokens || strstr(e->d_name, end)))
            fn(path);
    }
    closedir(d);
}

static void end_place(struct place *p)
{
    close_place(p);
    files(p, 0, remove_file);
    assert_int_equal(rmdir(p->dir), 0);
    free(p->ids);
}

/* Until n slots restore, or up to `most`; and, unless it is 0, until so many steps were made
 * meanwhile. */
static void wait_some_restoring(const struct place *p, int n, int most, int64_t n_steps)
{
    struct ingle_slot slot[SLOTS];
    int64_t from = -1;
    const struct timespec until = bound();
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        if (now.tv_sec > until.tv_sec)
            too_long("slots do not restore, or there are no steps");
        struct ingle_scheduler_status t;
        int is = 0;
        ingle_scheduler_status(p->s, &t, slot, SLOTS);
        for (int i = 0; i < SLOTS; i++)
            is += slot[i].restoring;
        const bool right = is >= n && is <= most;
        if (right && from < 0)
            from = t.n_steps;
        if (right && t.n_steps >= from + n_steps)
            return;
        usleep(200);
    }
}

static void wait_restoring(const struct place *p, int n, int64_t n_steps)
{
    wait_some_restoring(p, n, n, n_steps);
}

/* ---- what is promised ---- */

/* While the disk thread does not come back, answers go on; then the tokens are those of a cold
 * prompt. */
static void others_go_on_beside_a_restore(const char *model)
{
    struct place p;
    make_place(&p, model);
    struct asked *stream = ask(&p, 20, STREAM_TOKENS, 0);
    set_gate(true);
    struct asked *a = ask(&p, N, TOKENS, 0), *b = ask(&p, N, TOKENS, 0);
    wait_gate();
    /* the second one may wait for a look, too: the disk thread stands at the gate */
    wait_some_restoring(&p, 1, 2, STEPS);
    set_gate(false);
    wait_done(a);
    const int64_t kept = a->reuse.from_disk;
    assert_true(kept >= 1024 && kept < N);
    check(&p, a, kept);
    check(&p, b, 0); /* it waits for the first one */
    ingle_request_cancel(p.s, stream->r);
    wait_done(stream);
    assert_true(stream->n > STEPS / 2);
    free(stream);
    assert_int_equal(status_of(&p).store_hits, 1);
    end_place(&p);
}

static void others_go_on(void **state)
{
    (void)state;
    others_go_on_beside_a_restore(NULL);
}

/* Of two that wait for the store's look, whenever it ends, the first to come reads and the other
 * shares. */
static void the_first_to_wait_reads(void **state)
{
    (void)state;
    struct place p;
    make_place(&p, NULL);
    for (int more = 0; more < 4; more++) {
        close_place(&p);
        open_place(&p, false);
        struct asked *stream = ask(&p, 20, STREAM_TOKENS, 0);
        wait_restoring(&p, 0, 1);
        atomic_store(&look.held, true);
        struct asked *a = ask(&p, N, TOKENS, 0), *b = ask(&p, N, TOKENS, 0);
        wait_restoring(&p, 2, 1);
        atomic_store(&look.more, more);
        atomic_store(&look.held, false);
        wait_done(a);
        const int64_t kept = a->reuse.from_disk;
        assert_true(kept >= 1024 && kept < N);
        check(&p, a, kept);
        check(&p, b, 0);
        ingle_request_cancel(p.s, stream->r);
        wait_done(stream);
        free(stream);
    }
    end_place(&p);
}

/* A session and its file. */
struct filed {
    struct place *p;
    struct ingle_session *s;
    char path[128];
    bool load;
};

static void open_filed(struct ingle_engine *e, void *arg)
{
    struct filed *f = arg;
    const float *logits;
    must(ingle_session_open(&f->s, e, &error));
    if (f->load)
        return;
    must(ingle_session_sync(f->s, f->p->ids, N, NULL, &error));
    must(ingle_session_finish(f->s, &logits, &error));
}

static void close_filed(struct ingle_engine *e, void *arg)
{
    struct filed *f = arg;
    (void)e;
    if (f->load)
        must(ingle_session_remember(f->s, &error));
    ingle_session_close(f->s);
}

static void *move_file(void *arg)
{
    struct filed *f = arg;
    if (f->load)
        must(ingle_scheduler_load(f->p->s, f->s, f->path, &error));
    else
        must(ingle_session_save(f->s, f->path, &error));
    return NULL;
}

/* A file is written, or read, as long as the answers have made some steps. */
static void file_beside(struct filed *f)
{
    pthread_t thread;
    struct asked *stream = ask(f->p, 20, STREAM_TOKENS, 0);
    wait_restoring(f->p, 0, 1);
    ingle_scheduler_call(f->p->s, open_filed, f);
    set_gate(true);
    assert_int_equal(pthread_create(&thread, NULL, move_file, f), 0);
    wait_gate();
    wait_restoring(f->p, 0, STEPS);
    set_gate(false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    ingle_scheduler_call(f->p->s, close_filed, f);
    ingle_request_cancel(f->p->s, stream->r);
    wait_done(stream);
    assert_true(stream->n > STEPS / 2);
    free(stream);
}

static void others_go_on_beside_files(void **state)
{
    (void)state;
    struct place p;
    make_place(&p, NULL);
    struct filed f = {.p = &p};
    snprintf(f.path, sizeof f.path, "%s/0.0.session", p.dir);
    file_beside(&f);
    close_place(&p);
    files(&p, N, remove_file);
    files(&p, 1024, remove_file);
    open_place(&p, false);
    f.load = true;
    file_beside(&f);
    struct asked *a = ask(&p, N, TOKENS, 0);
    wait_done(a);
    assert_true(a->reuse.from_cache > N - 64);
    check(&p, a, 0);
    ingle_scheduler_call(p.s, open_filed, &f);
    char none[96];
    snprintf(none, sizeof none, "%s/none/x", p.dir);
    assert_int_equal(ingle_scheduler_load(p.s, f.s, none, &error), INGLE_NOTFOUND);
    files(&p, 0, damage);
    assert_int_equal(ingle_scheduler_load(p.s, f.s, f.path, &error), INGLE_FORMAT);
    assert_int_equal(ingle_session_length(f.s), 0);
    ingle_scheduler_call(p.s, close_filed, &f);
    end_place(&p);
}

static struct ingle_reuse synced;

static void *sync_one(void *arg)
{
    struct filed *f = arg;
    must(ingle_scheduler_sync(f->p->s, f->s, f->p->ids, N, &synced, &error));
    return NULL;
}

/* A session takes from the disk what the answers beside it do not wait for. */
static void others_go_on_beside_a_sync(void **state)
{
    (void)state;
    struct place p;
    pthread_t thread;
    make_place(&p, NULL);
    struct filed f = {.p = &p, .load = true};
    struct asked *stream = ask(&p, 20, STREAM_TOKENS, 0);
    wait_restoring(&p, 0, 1);
    ingle_scheduler_call(p.s, open_filed, &f);
    set_gate(true);
    assert_int_equal(pthread_create(&thread, NULL, sync_one, &f), 0);
    wait_gate();
    wait_restoring(&p, 0, STEPS);
    set_gate(false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(synced.from_disk >= 1024 && synced.kept == ingle_session_length(f.s));
    ingle_scheduler_call(p.s, close_filed, &f);
    ingle_request_cancel(p.s, stream->r);
    wait_done(stream);
    free(stream);
    end_place(&p);
}

static void with_compressed_rows(void **state)
{
    (void)state;
    others_go_on_beside_a_restore(v4);
}

/* Who leaves is gone at once, whatever the disk does; nothing is lost, and who comes then finds
 * all. */
static void it_ends_at_once(void **state)
{
    (void)state;
    struct place p;
    make_place(&p, NULL);
    set_gate(true);
    struct asked *a = ask(&p, N, TOKENS, 0);
    wait_gate();
    struct asked *late = ask(&p, N - 200, TOKENS, 0.05);
    check_end(late, INGLE_FINISH_DEADLINE);
    ingle_request_cancel(p.s, a->r);
    check_end(a, INGLE_FINISH_CANCEL);
    a = ask(&p, N, TOKENS, 0); /* behind the first one */
    wait_restoring(&p, 1, 0);
    assert_true(status_of(&p).kv_used_bytes <= status_of(&p).kv_budget_bytes);
    struct asked *c = ask(&p, N, TOKENS, 0);
    ingle_request_cancel(p.s, c->r);
    check_end(c, INGLE_FINISH_CANCEL);
    set_gate(false);
    wait_done(a);
    check(&p, a, a->reuse.from_disk);
    assert_int_equal(status_of(&p).store_hits, 1);
    const struct ingle_scheduler_status t = status_of(&p);
    assert_int_equal(t.kv_used_bytes, t.cache_bytes); /* nobody's but the cache's */
    end_place(&p);
}

/* A disk that does not answer costs a computation: whoever waits for a read, for a look or for
 * another one's prompt goes on, and nobody waits until the disk is there again. */
static void a_disk_that_does_not_answer(void **state)
{
    (void)state;
    struct place p;
    make_place(&p, NULL);
    set_gate(true);
    struct asked *a = ask(&p, N, TOKENS, 0), *b = ask(&p, N, TOKENS, 0);
    wait_gate();
    wait_some_restoring(&p, 1, 2, 0);
    atomic_store(&stuck, true);
    check(&p, a, 0);
    check(&p, b, 0);
    check(&p, ask(&p, N - 1, TOKENS, 0), 0);
    set_gate(false);
    atomic_store(&stuck, false);
    close_place(&p);
    open_place(&p, false);
    a = ask(&p, N, TOKENS, 0);
    wait_done(a);
    assert_true(a->reuse.from_disk >= 1024);
    check(&p, a, a->reuse.from_disk);
    end_place(&p);
}

/* Pages of a read that was given up come back when the pool needs them. */
static void memory_comes_back(void **state)
{
    (void)state;
    struct place p;
    make_place(&p, NULL);
    close_place(&p);
    open_place(&p, true);
    for (int i = 0; i < (UNIT_TSAN ? 4 : 8); i++) {
        struct asked *a = ask(&p, N, TOKENS, 0);
        if (i % 2)
            ingle_request_cancel(p.s, a->r);
        wait_done(a);
        assert_true(a->why == INGLE_FINISH_CANCEL || !memcmp(a->id, p.want, sizeof p.want));
        free(a);
        a = ask(&p, 20, 700, 0);
        wait_done(a);
        assert_int_equal(a->why, INGLE_FINISH_LENGTH);
        free(a);
    }
    end_place(&p);
}

/* A closing scheduler does not wait for the disk. */
static void closing_ends_it(void **state)
{
    (void)state;
    struct place p;
    make_place(&p, NULL);
    set_gate(true);
    struct asked *a = ask(&p, N, TOKENS, 0), *b = ask(&p, N - 300, TOKENS, 0);
    wait_gate();
    close_place(&p);
    check_end(a, INGLE_FINISH_CANCEL);
    check_end(b, INGLE_FINISH_CANCEL);
    open_place(&p, false);
    end_place(&p);
}

/* What is damaged or gone is computed, from the deepest place that is good. */
static void what_is_bad_is_computed(void **state)
{
    (void)state;
    struct place p;
    make_place(&p, NULL);
    files(&p, N, damage);
    struct asked *a = ask(&p, N, TOKENS, 0);
    wait_done(a);
    check(&p, a, 1024);
    assert_int_equal(status_of(&p).store_corrupt, 1);
    close_place(&p);

    open_place(&p, false);
    set_gate(true);
    a = ask(&p, N, TOKENS, 0);
    wait_gate();
    /* of those that are to be read, one after the other, the last one */
    files(&p, 512, remove_file);
    set_gate(false);
    check(&p, a, 0);
    end_place(&p);
}

/* A queue that was full, for whatever time the disk took: all of it is there for the next
 * process. */
static void what_is_owed_is_written(void **state)
{
    (void)state;
    enum { PROMPTS = 6 };
    struct place p;
    make_place(&p, NULL);
    set_gate(true);
    for (int i = 0; i < PROMPTS; i++) {
        p.ids[0] = p.ids[i + 1];
        struct asked *a = ask(&p, N, 0, 0);
        wait_done_at_gate(a);
        assert_int_equal(a->reuse.kept, 0);
        free(a);
    }
    close_place(&p);
    open_place(&p, false);
    for (int i = 0; i < PROMPTS; i++) {
        p.ids[0] = p.ids[i + 1];
        struct asked *a = ask(&p, N, 0, 0);
        wait_done(a);
        assert_int_equal(a->reuse.from_disk, N - 1);
        free(a);
    }
    end_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_go_on_beside_files),
        cmocka_unit_test(others_go_on_beside_a_sync),
        cmocka_unit_test(others_go_on),
        cmocka_unit_test(the_first_to_wait_reads),
        cmocka_unit_test(with_compressed_rows),
        cmocka_unit_test(it_ends_at_once),
        cmocka_unit_test(a_disk_that_does_not_answer),
        cmocka_unit_test(memory_comes_back),
        cmocka_unit_test(closing_ends_it),
        cmocka_unit_test(what_is_bad_is_computed),
        cmocka_unit_test(what_is_owed_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
