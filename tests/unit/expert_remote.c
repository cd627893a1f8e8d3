/* SPDX-License-Identifier: Apache-2.0 */
/* Long file: every case of a worker needs the same engine, proxy and model.
 * Workers: the bits of one process, whoever computes what, and whatever a worker or an engine at
 * the other end does. */
#define _GNU_SOURCE
#include "unit/allocations.h"
#include "unit/folder.h"
#include "unit/hash.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/session.h"
#include "expert/away.h"
#include "expert/fetch.h"
#include "expert/serve.h"
#include "expert/split.h"
#include "expert/store.h"
#include "model/packed.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char moe[] = "tests/data/goldens/gemma4_moe/model-F32.gguf";
static const char *const models[] = {moe, "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
                                     "tests/data/nano-v4/nano-v4-MXFP4.gguf"};
enum { N_MODELS = sizeof models / sizeof *models, PROMPT = 40, ANSWER = 5 };

static char dir[64], at[2][96]; /* where workers listen */
static char said[8192];

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    (void)arg;
    (void)level;
    (void)subject;
    const size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s: %s\n", kind, text);
}

/* ---- an engine ---- */

struct world {
    struct ingle_model *m;
    struct ingle_engine *e;
};

static void open_world(struct world *w, const char *path, uint64_t budget, const char *workers)
{
    const struct ingle_engine_options o = {.n_ctx = 512,
                                           .threads = 2,
                                           .expert_bytes = budget,
                                           .experts_worker = workers,
                                           .callbacks = {.report = hear}};
    said[0] = 0;
    must(ingle_model_open(&w->m, path, NULL, &error));
    must(ingle_engine_open(&w->e, w->m, &o, &error));
}

static void close_world(struct world *w)
{
    ingle_engine_close(w->e);
    ingle_model_close(w->m);
}

/* Instead of the engine's own workers: with hooks. */
static ingle_status call_again(struct world *w, struct expert_remote_options o, const char *address,
                               struct err *err)
{
    struct link_hello hello;
    expert_remote_close(w->e->workers);
    w->e->workers = NULL;
    if (engine_worker_describe(w->e, &hello, err))
        fail_msg("%s", err->msg);
    o.address = &address;
    o.share = -1;
    o.n = 1;
    o.hello = &hello;
    o.sink = &w->e->sink;
    return expert_remote_open(&w->e->workers, w->e->weights, &o, err);
}

static uint64_t compute(struct world *w) { return hash_of(w->e, PROMPT, ANSWER); }

static uint64_t alone(const char *path)
{
    struct world w;
    open_world(&w, path, 0, NULL);
    const uint64_t h = compute(&w);
    close_world(&w);
    return h;
}

static uint64_t least_of(const char *path)
{
    struct world w;
    open_world(&w, path, 0, NULL);
    const uint64_t n = expert_store_least(w.e->weights);
    close_world(&w);
    return n;
}

/* ---- a worker ---- */

struct helper {
    struct ingle_model *m;
    struct ingle_worker *w;
    pthread_t thread;
};

static void *run(void *arg)
{
    ingle_worker_run(arg);
    return NULL;
}

static void start(struct helper *h, const char *path, const char *listen, const char *layers,
                  uint64_t budget, const char *key)
{
    const struct ingle_engine_options o = {.threads = 1, .expert_bytes = budget, .worker_key = key};
    const struct ingle_worker_options how = {.listen = listen, .layers = layers};
    must(ingle_model_open(&h->m, path, NULL, &error));
    must(ingle_worker_open(&h->w, h->m, &o, &how, &error));
    assert_int_equal(pthread_create(&h->thread, NULL, run, h->w), 0);
}

static struct ingle_worker_info stop(struct helper *h)
{
    struct ingle_worker_info info;
    ingle_worker_stop(h->w);
    pthread_join(h->thread, NULL);
    ingle_worker_info(h->w, &info);
    ingle_worker_close(h->w);
    ingle_model_close(h->m);
    return info;
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ingle-worker-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    for (int i = 0; i < 2; i++)
        snprintf(at[i], sizeof at[i], "unix:%s/%d", dir, i);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_dir(dir);
    return 0;
}

/* ---- dealing ---- */

static void all_ends_finish_together(void **state)
{
    (void)state;
    enum { N = 96 };
    struct split_expert e[N];
    int32_t order[N];
    int8_t owner[N];
    for (int kind = 0; kind < 4; kind++) {
        struct split_cost c[SPLIT_ENDS] = {{100, 0, 0},
                                           {kind == 1 ? 300 : 100, 0, kind == 2 ? 20000 : 0}};
        double end[2] = {0, c[1].start_ns};
        for (int i = 0; i < N; i++)
            e[i] = (struct split_expert){split_units(1 + i % 7), 3, 3};
        expert_split_deal(c, e, N, -1, order, owner);
        for (int i = 0; i < N; i++)
            end[owner[i]] += c[owner[i]].unit_ns * (double)e[i].units;
        const double most = end[0] > end[1] ? end[0] : end[1],
                     least = end[0] < end[1] ? end[0] : end[1];
        assert_true(most - least <= 300 * 15); /* the largest piece */
    }
    /* a round trip longer than all the work: nobody goes */
    struct split_cost far[SPLIT_ENDS] = {{100, 0, 0}, {100, 0, 1e9}};
    expert_split_deal(far, e, N, -1, order, owner);
    for (int i = 0; i < N; i++)
        assert_int_equal(owner[i], SPLIT_HERE);
    /* but one is probed */
    int n = 0;
    expert_split_deal(far, e, N, 1, order, owner);
    for (int i = 0; i < N; i++)
        n += owner[i] == 1;
    assert_int_equal(n, 1);
    /* what is not in memory here goes where it is */
    struct split_cost disk[SPLIT_ENDS] = {{100, 1e8, 0}, {100, 1e8, 1000}};
    for (int i = 0; i < N; i++)
        e[i] = (struct split_expert){split_units(1), 3, i % 2 ? 1 : 2};
    expert_split_deal(disk, e, N, -1, order, owner);
    for (int i = 0; i < N; i++)
        assert_int_equal(owner[i], i % 2 ? 0 : 1);
    /* only those that may */
    for (int i = 0; i < N; i++)
        e[i].may = i % 3 ? 1 : 5;
    expert_split_deal(disk, e, N, 1, order, owner);
    for (int i = 0; i < N; i++)
        assert_true(owner[i] == 0 || (owner[i] == 2 && i % 3 == 0));
}

static void sizes_rise(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows < 100000; rows++)
        assert_true(expert_split_size(rows) <= expert_split_size(rows + 1) &&
                    expert_split_size(rows) < SPLIT_SIZES);
    assert_true(expert_split_size(1) == 0 && expert_split_size(2) == 1);
    double mean = 0;
    for (int i = 0; i < 200; i++)
        expert_split_learn(&mean, i < 100 ? 10 : 20);
    assert_true(mean > 19.9 && mean <= 20);
}

/* ---- the same bits ---- */

static void check_worker(const struct world *w, int i)
{
    struct ingle_engine_worker x;
    assert_true(ingle_engine_worker(w->e, i, &x));
    assert_string_equal(x.state, "ready");
    assert_true(x.evals > 0 && x.pairs > 0 && x.experts > 0 && x.losses == 0 && x.redone == 0 &&
                x.sent_bytes > 0 && x.received_bytes > 0);
    /* unit_us is of steps of one row: a worker that had none of these does not know it */
    assert_true(x.hits + x.misses > 0 && x.compute_ns > 0 && x.unit_us >= 0);
    assert_false(ingle_engine_worker(w->e, EXPERT_WORKERS, &x));
}

static void whoever_computes_the_bits_are_the_same(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        const uint64_t plain = alone(models[i]), least = least_of(models[i]);
        struct helper h;
        start(&h, models[i], at[0], NULL, 0, NULL);
        for (int k = 0; k < (UNIT_TSAN ? 2 : 5); k++) {
            struct world w;
            struct err err;
            open_world(&w, models[i], k % 2 ? least : 0, at[0]);
            if (k && call_again(&w, (struct expert_remote_options){.shake = 10 + (uint64_t)k},
                                at[0], &err))
                fail_msg("%s", err.msg);
            assert_true(compute(&w) == plain);
            assert_true(compute(&w) == plain);
            if (k)
                check_worker(&w, 0);
            close_world(&w);
        }
        const struct ingle_worker_info n = stop(&h);
        assert_true(n.evals > 0 && n.refused == 0 && n.failed == 0);
    }
}

static void two_workers_with_small_memory_and_ranges(void **state)
{
    (void)state;
    const char *path = models[N_MODELS - 1];
    const uint64_t plain = alone(path), least = least_of(path);
    struct helper h[2];
    struct world w;
    char both[256];
    snprintf(both, sizeof both, "%s,%s", at[0], at[1]);
    start(&h[0], path, at[0], "0:2", least, NULL);
    start(&h[1], path, at[1], "1:4", least, NULL);
    open_world(&w, path, least, both);
    assert_non_null(strstr(said, "layers 0:2"));
    assert_non_null(strstr(said, "layers 1:4"));
    for (int k = 0; k < 4; k++)
        assert_true(compute(&w) == plain);
    check_worker(&w, 0);
    check_worker(&w, 1);
    close_world(&w);
    (void)stop(&h[0]);
    (void)stop(&h[1]);
}

/* Questions to a worker and its answers have their memory after the first ones, at both ends. */
static void steps_allocate_nothing(void **state)
{
    (void)state;
    enum { FIRST = 16, STEPS = 40 };
    struct helper h;
    struct world w;
    struct err err;
    struct ingle_engine_worker before, after;
    struct ingle_session *s;
    int32_t tokens[PROMPT + FIRST + STEPS];
    const float *logits;
    start(&h, models[2], at[0], NULL, 0, NULL);
    open_world(&w, models[2], 0, at[0]);
    assert_false(call_again(&w, (struct expert_remote_options){.shake = 11}, at[0], &err));
    for (int i = 0; i < PROMPT + FIRST + STEPS; i++)
        tokens[i] = 5 + i * 7 % 200;
    must(ingle_session_open(&s, w.e, &error));
    must(ingle_session_append(s, tokens, PROMPT + FIRST + STEPS, &error)); /* its list has room */
    must(ingle_session_rewind(s, 0, &error));
    must(ingle_session_sync(s, tokens, PROMPT, NULL, &error));
    must(ingle_session_finish(s, &logits, &error));
    for (int n = 0; n < FIRST + STEPS; n++) {
        struct ingle_work step = {.session = s, .want = INGLE_WANT_LAST};
        const int then = atomic_load(&allocations);
        must(ingle_session_append(s, tokens + PROMPT + n, 1, &error));
        must(ingle_step(w.e, &step, 1, &error));
        if (n == FIRST)
            assert_true(ingle_engine_worker(w.e, 0, &before));
        if (n > FIRST)
            assert_int_equal(atomic_load(&allocations), then);
    }
    assert_true(ingle_engine_worker(w.e, 0, &after) && atomic_load(&allocations) > 0);
    assert_true(after.evals >= before.evals + STEPS / 2); /* it has computed */
    ingle_session_close(s);
    close_world(&w);
    (void)stop(&h);
}

static void who_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct helper h;
    struct ingle_model *m;
    struct ingle_engine *e;
    const struct ingle_engine_options o = {.n_ctx = 512, .threads = 1, .experts_worker = at[0]};
    const struct ingle_engine_options other = {
        .n_ctx = 512, .threads = 1, .experts_worker = at[0], .numerics = "reference"};
    const struct ingle_engine_options far = {
        .n_ctx = 512, .threads = 1, .experts_worker = "10.0.0.1:4000"};
    start(&h, models[2], at[0], NULL, 0, NULL);
    must(ingle_model_open(&m, moe, NULL, &error));
    assert_int_equal(ingle_engine_open(&e, m, &o, &error), INGLE_UNSUP);
    assert_non_null(strstr(error.text, "another model"));
    assert_int_equal(ingle_engine_open(&e, m, &far, &error), INGLE_ARG);
    assert_non_null(strstr(error.text, "a key is needed"));
    ingle_model_close(m);
    must(ingle_model_open(&m, models[2], NULL, &error));
    assert_int_equal(ingle_engine_open(&e, m, &other, &error), INGLE_UNSUP);
    assert_non_null(strstr(error.text, "numerics"));
    ingle_model_close(m);
    assert_int_equal(stop(&h).refused, 2);
    const struct ingle_worker_options bad[] = {
        {.listen = "0.0.0.0:0"},
        {.listen = "fd:7777"},
        {.listen = at[0], .layers = "9:12"},
        {.listen = at[0], .layers = "x"},
        {.listen = "nowhere"}};
    must(ingle_model_open(&m, models[2], NULL, &error));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ingle_worker *w;
        assert_int_equal(
            ingle_worker_open(&w, m, &(struct ingle_engine_options){.threads = 1}, &bad[i], &error),
            INGLE_ARG);
    }
    ingle_model_close(m);
}

static void write_key(char *path, size_t n, const char *name, char digit)
{
    snprintf(path, n, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    for (int i = 0; i < 64; i++)
        fputc(digit, f);
    assert_true(fchmod(fileno(f), 0600) == 0 && fclose(f) == 0);
}

static void keys_must_be_the_same(void **state)
{
    (void)state;
    char one[96], two[96], listen[64];
    const uint64_t plain = alone(moe);
    struct helper h;
    struct world w;
    struct err err;
    write_key(one, sizeof one, "one", 'a');
    write_key(two, sizeof two, "two", 'b');
    start(&h, moe, "127.0.0.1:0", NULL, 0, one);
    snprintf(listen, sizeof listen, "%.60s", ingle_worker_address(h.w));
    open_world(&w, moe, 0, NULL);
    for (int k = 0; k < 3; k++) {
        const char *key = k == 0 ? one : k == 1 ? two : NULL;
        if (call_again(&w,
                       (struct expert_remote_options){
                           .shake = 5, .key_file = key, .greet_ms = k ? 300 : 0},
                       listen, &err))
            fail_msg("%s", err.msg);
        struct ingle_engine_worker x;
        assert_true(ingle_engine_worker(w.e, 0, &x));
        assert_string_equal(x.state, k ? "away" : "ready");
        if (k == 1)
            assert_non_null(strstr(said, "another key"));
    }
    close_world(&w);
    /* memory of steps is planned without workers there: only asked again */
    open_world(&w, moe, 0, NULL);
    assert_true(compute(&w) == plain);
    close_world(&w);
    assert_int_equal(stop(&h).refused, 0);
}

/* Without a model nothing is agreed on; with one a look says why it would be refused.  Engines are
 * served all the same. */
static void a_look_says_who_it_is(void **state)
{
    (void)state;
    char one[96], two[96], listen[64];
    struct ingle_worker_seen x;
    struct ingle_model *m;
    struct helper h;
    struct ingle_engine_options o = {.threads = 1};
    start(&h, models[2], at[0], "1:3", 0, NULL);
    must(ingle_worker_look(at[0], NULL, &o, &x, &error));
    assert_true(!x.compared && !x.refused[0] && x.n_layers > 3 && x.experts == 2 * x.n_experts &&
                x.slots > 0 && x.threads == 1 && x.version_max >= x.version_min);
    assert_string_equal(x.layers, "1:3");
    assert_string_equal(x.numerics, "exact");
    assert_true(x.trip_us > 0 && x.expert_us > 0 && x.socket_bytes_per_s > 0 && !x.no_rates[0]);
    assert_true(x.shared_bytes_per_s > 0 ? !x.no_share[0] : strlen(x.no_share) > 8);
    must(ingle_model_open(&m, models[2], NULL, &error));
    must(ingle_worker_look(at[0], m, &o, &x, &error));
    assert_true(x.compared && !x.refused[0]);
    o.numerics = "reference";
    must(ingle_worker_look(at[0], m, &o, &x, &error));
    assert_non_null(strstr(x.refused, "numerics"));
    o.numerics = NULL;
    ingle_model_close(m);
    must(ingle_model_open(&m, moe, NULL, &error));
    must(ingle_worker_look(at[0], m, &o, &x, &error));
    assert_non_null(strstr(x.refused, "another model"));
    ingle_model_close(m);
    assert_int_equal(stop(&h).refused, 0);
    write_key(one, sizeof one, "one", 'a');
    write_key(two, sizeof two, "two", 'b');
    start(&h, moe, "127.0.0.1:0", NULL, 0, one);
    snprintf(listen, sizeof listen, "%.60s", ingle_worker_address(h.w));
    o.worker_key = two;
    assert_int_equal(ingle_worker_look(listen, NULL, &o, &x, &error), INGLE_IO);
    assert_non_null(strstr(error.text, "another key"));
    o.worker_key = one;
    must(ingle_worker_look(listen, NULL, &o, &x, &error));
    assert_true(x.socket_bytes_per_s > 0 && !(x.shared_bytes_per_s > 0) &&
                strstr(x.no_share, "unix:PATH"));
    (void)stop(&h);
    o.worker_key = NULL;
    assert_int_equal(ingle_worker_look("10.0.0.1:4000", NULL, &o, &x, &error), INGLE_ARG);
}

/* ---- a worker that is none ---- */

enum how {
    HONEST,
    SILENT,
    CUT,
    OTHER_TAG,
    OTHER_HEAD,
    SHORT,
    WRONG_SUM,
    FAIL_ONE,
    FAIL_ALL,
    SECOND_HELLO,
    QUADS_PREFETCH,
    BYE,
    OTHER_PLACE,
    SHARES_UNASKED,
    N_HOW
};
static const char *const expected[N_HOW] = {"",
                                            "late",
                                            "gone",
                                            "was not sent",
                                            "another head",
                                            "payload of RESULT",
                                            "checksum",
                                            "no such luck",
                                            "go away",
                                            "only an engine",
                                            "only an engine",
                                            "it ends",
                                            "another place",
                                            "only an engine"};

struct fake {
    struct link *link;
    pthread_t thread;
    _Atomic int how, stop; /* Sync: atomic */
    _Atomic int asked;     /* Sync: atomic */
    const char *address;
    struct link_shape shape;
};

static void fake_send(struct fake *f, const struct link_peer *to, struct link_head h, size_t n,
                      const void *bytes)
{
    struct link_out m;
    if (!link_out_init(&m, n))
        return;
    if (n && bytes)
        memcpy(m.payload, bytes, n);
    else if (n)
        memset(m.payload, 0x7f, n); /* numbers that would be seen */
    (void)!link_send(f->link, to, &h, &m);
}

static void fake_listen(struct fake *f)
{
    struct err err;
    const struct link_options o = {.address = f->address, .most_bytes = LINK_MAX_BYTES};
    if (link_listen(&f->link, &o, &err))
        abort();
}

static void fake_answer(struct fake *f, const struct link_in *in)
{
    struct link_hello hello;
    struct link_head h, back;
    uint8_t bytes[LINK_HELLO_BYTES];
    if (link_head_read(in->head, in->n_head, in->payload, in->n_payload,
                       f->shape.hidden ? &f->shape : NULL, &h, NULL))
        return;
    back = h;
    back.kind = LINK_RESULT;
    if (h.kind == LINK_HELLO) {
        if (link_hello_read(in->payload, in->n_payload, &hello, NULL))
            return;
        hello.most_rows = hello.most_pairs = 256;
        hello.slots = 1000;
        f->shape = (struct link_shape){hello.n_layers, hello.n_experts, hello.hidden, 256, 256};
        link_hello_write(&hello, bytes);
        fake_send(f, &in->from, (struct link_head){.kind = LINK_HELLO}, sizeof bytes, bytes);
        return;
    }
    if (h.kind == LINK_SHARE && atomic_load(&f->how) == OTHER_PLACE)
        fake_send(f, &in->from, (struct link_head){.kind = LINK_SHARE}, 0, NULL);
    if (h.kind != LINK_EVAL)
        return;
    atomic_fetch_add(&f->asked, 1);
    const size_t n = link_result_bytes(&back, &f->shape);
    switch (atomic_load(&f->how)) {
    case CUT:
        link_close(f->link);
        f->shape.hidden = 0;
        fake_listen(f);
        break;
    case OTHER_TAG: back.tag++; fake_send(f, &in->from, back, n, NULL); break;
    case OTHER_HEAD: back.layer = back.layer ? 0 : 1; fake_send(f, &in->from, back, n, NULL); break;
    case SHORT: fake_send(f, &in->from, back, n - 4, NULL); break;
    case FAIL_ONE:
        fake_send(f, &in->from, (struct link_head){.kind = LINK_FAIL, .tag = h.tag}, 12,
                  "no such luck");
        break;
    case FAIL_ALL:
        fake_send(f, &in->from, (struct link_head){.kind = LINK_FAIL}, 7, "go away");
        break;
    case SECOND_HELLO:
        fake_send(f, &in->from, (struct link_head){.kind = LINK_HELLO}, sizeof bytes, bytes);
        break;
    case QUADS_PREFETCH: {
        struct link_head ask = h;
        ask.kind = LINK_EVAL;
        fake_send(f, &in->from, ask, in->n_payload, in->payload);
        break;
    }
    case OTHER_PLACE: {
        const uint64_t slot = in->n_payload && in->payload[0] ? 0 : 1;
        if (h.flags & LINK_SHARED)
            fake_send(f, &in->from, back, sizeof slot, &slot);
        else
            fake_send(f, &in->from, (struct link_head){.kind = LINK_FAIL, .tag = h.tag}, 5,
                      "later");
        break;
    }
    case SHARES_UNASKED:
        fake_send(f, &in->from, (struct link_head){.kind = LINK_SHARE}, LINK_SHARE_HELLO, NULL);
        break;
    case BYE: fake_send(f, &in->from, (struct link_head){.kind = LINK_BYE}, 0, NULL); break;
    default: break;
    }
}

static void *fake_run(void *arg)
{
    struct fake *f = arg;
    struct link_in in;
    char why[8];
    while (!atomic_load(&f->stop))
        if (link_wait(f->link, 10, &in, why, sizeof why) == LINK_MESSAGE) {
            fake_answer(f, &in);
            link_in_release(&in);
        }
    link_close(f->link);
    return NULL;
}

static void a_worker_may_do_anything(void **state)
{
    (void)state;
    const char *path = models[2];
    const uint64_t plain = alone(path);
    for (int how = SILENT; how < N_HOW; how++) {
        struct fake f = {.address = at[0]};
        struct world w;
        struct ingle_engine_worker x;
        struct err err;
        /* an end has no way to damage a frame: unit_link_frame sees each bit */
        if (how == WRONG_SUM)
            continue;
        /* Only silence is to be found by the clock: a busy machine makes every answer late. */
        const uint64_t late_ns = how == SILENT ? 30000000 : 30000000000;
        atomic_store(&f.how, how);
        fake_listen(&f);
        assert_int_equal(pthread_create(&f.thread, NULL, fake_run, &f), 0);
        open_world(&w, path, 0, at[0]);
        if (call_again(&w,
                       (struct expert_remote_options){.shake = 3 + (uint64_t)how,
                                                      .late_ns = late_ns,
                                                      .least_shared = 1,
                                                      .no_share = how == SHARES_UNASKED},
                       at[0], &err))
            fail_msg("%s", err.msg);
        assert_true(compute(&w) == plain);
        assert_true(ingle_engine_worker(w.e, 0, &x));
        assert_true(atomic_load(&f.asked) > 0 && x.redone > 0 && x.experts == 0);
        assert_true(how == FAIL_ONE ? x.losses == 0 : x.losses > 0);
        if (!strstr(said, expected[how]))
            fail_msg("case %d: '%s' does not say '%s'", how, said, expected[how]);
        close_world(&w);
        atomic_store(&f.stop, 1);
        pthread_join(f.thread, NULL);
    }
}

/* A lost worker, and experts that cannot be read here, either. */
static ssize_t no_read(void *arg, const void *to, size_t n, off_t place, int *wait)
{
    const _Atomic int *fails = arg;
    (void)to;
    (void)place;
    *wait = -1;
    return atomic_load(fails) ? -EIO : (ssize_t)n;
}

static ssize_t as_read(void *arg, void *to, ssize_t got, off_t place)
{
    (void)arg;
    (void)to;
    (void)place;
    return got;
}

static void over(void *arg)
{
    (void)arg;
}

static void what_nobody_can_compute_is_an_error(void **state)
{
    (void)state;
    const uint64_t plain = alone(moe), least = least_of(moe);
    _Atomic int fails = 1;
    const struct fetch_hook hook = {&fails, no_read, as_read, over};
    struct fake f = {.address = at[0]};
    struct world w;
    struct err err;
    struct ingle_engine_options o = {.n_ctx = 512,
                                     .threads = 2,
                                     .expert_bytes = least,
                                     .experts_worker = at[0],
                                     .pack_cache = dir,
                                     .pack_write = true,
                                     .callbacks = {.report = hear}};
    atomic_store(&f.how, SILENT);
    fake_listen(&f);
    assert_int_equal(pthread_create(&f.thread, NULL, fake_run, &f), 0);
    must(ingle_model_open(&w.m, moe, NULL, &error));
    must(ingle_engine_open(&w.e, w.m, &o, &error));
    expert_store_close(w.e->experts);
    w.e->experts = NULL;
    if (expert_store_open(
            &w.e->experts, w.e->weights,
            &(struct expert_store_options){.budget_bytes = least, .n_used = 2, .hook = &hook},
            &err) ||
        call_again(&w, (struct expert_remote_options){.shake = 1, .late_ns = 20000000}, at[0],
                   &err))
        fail_msg("%s", err.msg);
    assert_true(compute(&w) == 0);
    assert_int_equal(error.status, INGLE_IO);
    assert_non_null(strstr(error.text, "layer "));
    assert_non_null(strstr(error.text, "expert "));
    atomic_store(&fails, 0);
    assert_true(compute(&w) == plain);
    close_world(&w);
    atomic_store(&f.stop, 1);
    pthread_join(f.thread, NULL);
}

/* ---- an engine that is none ---- */

/* The next FAIL's text of a peer that sends one message. */
static void refused_for(const struct link_hello *hello, const struct link_head *h,
                        const void *payload, size_t n, const char *word)
{
    const struct link_options o = {.address = at[0], .most_bytes = LINK_MAX_BYTES};
    struct link *l;
    struct link_in in;
    struct link_out m;
    struct link_head got;
    char why[160], text[LINK_MAX_TEXT + 1] = "";
    assert_int_equal(link_dial(&l, &o, NULL), INGLE_OK);
    while (link_wait(l, 100, &in, why, sizeof why) != LINK_UP)
        ;
    if (hello) {
        assert_true(link_out_init(&m, LINK_HELLO_BYTES));
        link_hello_write(hello, m.payload);
        assert_true(link_send(l, NULL, &(struct link_head){.kind = LINK_HELLO}, &m));
    }
    assert_true(link_out_init(&m, n));
    if (n)
        memcpy(m.payload, payload, n);
    assert_true(link_send(l, NULL, h, &m));
    while (!text[0]) {
        if (link_wait(l, 100, &in, why, sizeof why) != LINK_MESSAGE)
            continue;
        assert_int_equal(
            link_head_read(in.head, in.n_head, in.payload, in.n_payload, NULL, &got, NULL),
            INGLE_OK);
        if (got.kind == LINK_FAIL)
            link_fail_text(in.payload, in.n_payload, text);
        link_in_release(&in);
    }
    if (!strstr(text, word))
        fail_msg("'%s' does not say '%s'", text, word);
    link_close(l);
}

static void an_engine_may_say_anything(void **state)
{
    (void)state;
    const char *path = models[2];
    const uint64_t plain = alone(path);
    struct helper h;
    struct world w;
    struct link_hello hello;
    struct err err;
    start(&h, path, at[0], "1:3", 0, NULL);
    open_world(&w, path, 0, at[0]);
    if (engine_worker_describe(w.e, &hello, &err))
        fail_msg("%s", err.msg);
    const struct link_shape s = {hello.n_layers, hello.n_experts, hello.hidden, 2048, 4096};
    struct link_head ask = {.kind = LINK_EVAL, .layer = 1, .n_rows = 1, .n_pairs = 2};
    const size_t n = link_eval_bytes(&ask, &s);
    uint8_t *payload = mem_calloc(1, n);
    link_eval_begin(payload, 0, 0);
    link_put_u32(payload + LINK_EVAL_BYTES + 12, 1); /* experts 0 and 1 of row 0 */
    refused_for(NULL, &ask, payload, n, "before HELLO");
    refused_for(&hello,
                &(struct link_head){.kind = LINK_EVAL, .layer = 1, .n_rows = 9999, .n_pairs = 2},
                payload, n, "'rows' 9999 outside 1 to");
    refused_for(&hello,
                &(struct link_head){.kind = LINK_EVAL, .layer = 99, .n_rows = 1, .n_pairs = 2},
                payload, n, "'layer' 99");
    refused_for(&hello,
                &(struct link_head){.kind = LINK_EVAL, .layer = 0, .n_rows = 1, .n_pairs = 2},
                payload, n, "layer 0 is none of those");
    refused_for(&hello,
                &(struct link_head){.kind = LINK_RESULT, .layer = 1, .n_rows = 1, .n_pairs = 2},
                payload, n, "payload of RESULT");
    refused_for(&hello, &(struct link_head){.kind = LINK_FAIL}, NULL, 0, "only a worker");
    refused_for(&hello, &(struct link_head){.kind = LINK_PLACE}, "\xff\xff\xff\xff", 4,
                "has layer 65535 of");
    refused_for(&hello, &(struct link_head){.kind = LINK_STATS}, payload, LINK_STATS_BYTES,
                "only a worker");
    refused_for(NULL, &(struct link_head){.kind = LINK_PLACE}, NULL, 0, "before HELLO");
    refused_for(&hello, &(struct link_head){.kind = LINK_HELLO}, payload, 8, "payload of HELLO");
    ask.flags = LINK_SUM;
    refused_for(&hello, &ask, payload, n, "payload of EVAL");
    ask.flags = 0;
    link_put_u32(payload + LINK_EVAL_BYTES + 12, hello.n_experts);
    refused_for(&hello, &ask, payload, n, "'expert' ");
    /* sums of rows that have not all experts */
    struct link_head sum = {
        .kind = LINK_EVAL, .layer = 1, .n_rows = 2, .n_pairs = 4, .flags = LINK_SUM};
    const size_t n_sum = link_eval_bytes(&sum, &s);
    uint8_t *sums = mem_calloc(1, n_sum);
    link_eval_begin(sums, 2, 0);
    for (uint32_t i = 0; i < 4; i++) {
        link_put_u32(sums + LINK_EVAL_BYTES + 4 * i, i == 3);
        link_put_u32(sums + LINK_EVAL_BYTES + 16 + 4 * i, i);
    }
    refused_for(&hello, &sum, sums, n_sum, "more than 2 experts");
    assert_true(compute(&w) == plain); /* an honest one is served beside them */
    mem_free(payload);
    mem_free(sums);
    close_world(&w);
    assert_int_equal(stop(&h).refused, 13);
}

/* The next message of a worker that is no HELLO. */
static void next_of(struct link *l, const struct link_shape *s, struct link_in *in,
                    struct link_head *h)
{
    char why[160];
    for (;;) {
        if (link_wait(l, 100, in, why, sizeof why) != LINK_MESSAGE)
            continue;
        assert_int_equal(
            link_head_read(in->head, in->n_head, in->payload, in->n_payload, s, h, NULL), INGLE_OK);
        if (h->kind != LINK_HELLO)
            return;
        link_in_release(in);
    }
}

/* A few messages may be on their way at a time. */
static void say(struct link *l, const struct link_head *h, const void *payload, size_t n)
{
    for (int i = 0; i < 5000; i++) {
        struct link_out m;
        assert_true(link_out_init(&m, n));
        if (n)
            memcpy(m.payload, payload, n);
        if (link_send(l, NULL, h, &m))
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("nothing more is taken");
}

static struct link *dial_with(const struct link_hello *hello)
{
    struct link *l;
    struct link_in in;
    char why[160];
    uint8_t bytes[LINK_HELLO_BYTES];
    assert_int_equal(
        link_dial(&l, &(struct link_options){.address = at[0], .most_bytes = LINK_MAX_BYTES}, NULL),
        INGLE_OK);
    while (link_wait(l, 100, &in, why, sizeof why) != LINK_UP)
        ;
    link_hello_write(hello, bytes);
    say(l, &(struct link_head){.kind = LINK_HELLO}, bytes, sizeof bytes);
    while (link_wait(l, 100, &in, why, sizeof why) != LINK_MESSAGE) /* its */
        ;
    link_in_release(&in);
    return l;
}

/* What has not begun when its CANCEL comes is not computed; counters say so. */
static void what_is_not_wanted_is_not_computed(void **state)
{
    (void)state;
    enum { ROWS = 64 };
    struct helper h;
    struct world w;
    struct link_hello hello;
    struct link_in in;
    struct link_head got;
    struct link_stats stats = {0};
    start(&h, models[2], at[0], NULL, 0, NULL);
    open_world(&w, models[2], 0, NULL);
    assert_int_equal(engine_worker_describe(w.e, &hello, NULL), INGLE_OK);
    const struct link_shape s = {hello.n_layers, hello.n_experts, hello.hidden, ROWS, ROWS};
    struct link_head ask = {.kind = LINK_EVAL, .layer = 1, .n_rows = ROWS, .n_pairs = ROWS};
    const size_t n = link_eval_bytes(&ask, &s);
    uint8_t *payload = mem_calloc(1, n);
    link_eval_begin(payload, 0, 0);
    for (uint32_t i = 0; i < ROWS; i++)
        link_put_u32(payload + LINK_EVAL_BYTES + 4 * i, i);
    struct link *l = dial_with(&hello);
    for (int round = 0; round < 500 && !stats.cancelled; round++) { /* a CANCEL may come too late */
        for (ask.tag = 1; ask.tag <= 2; ask.tag++)
            say(l, &ask, payload, n);
        say(l, &(struct link_head){.kind = LINK_CANCEL, .tag = 2}, NULL, 0);
        for (uint64_t tag = 1; tag <= 2; tag++) {
            next_of(l, &s, &in, &got);
            assert_true(got.tag == tag &&
                        (got.kind == LINK_RESULT || (tag == 2 && got.kind == LINK_FAIL)));
            link_in_release(&in);
        }
        say(l, &(struct link_head){.kind = LINK_STATS}, NULL, 0);
        next_of(l, &s, &in, &got);
        assert_int_equal(got.kind, LINK_STATS);
        assert_int_equal(link_stats_read(in.payload, in.n_payload, &stats, NULL), INGLE_OK);
        assert_true(stats.evals + stats.cancelled == 2 * ((uint64_t)round + 1) &&
                    stats.peers == 1 && stats.up_ns > 0);
        link_in_release(&in);
    }
    assert_true(stats.cancelled > 0);
    link_close(l);
    mem_free(payload);
    close_world(&w);
    (void)stop(&h);
}

/* Reads wait until the gate is open. */
static ssize_t gated_read(void *arg, const void *to, size_t n, off_t place, int *wait)
{
    (void)to;
    (void)place;
    *wait = *(const int *)arg;
    return (ssize_t)n;
}

static void *serve(void *arg)
{
    expert_serve_run(arg);
    return NULL;
}

/* A CANCEL that comes while its EVAL waits for the disk ends it; what came meanwhile, short and
 * long, is answered behind it in its order. */
static void what_is_computed_already_ends_by_a_cancel(void **state)
{
    (void)state;
    enum { PAIRS = 8, MOST_LAYERS = 8 };
    struct world w;
    struct link_hello hello;
    struct err err;
    struct expert_serve *s;
    struct link_in in;
    struct link_head got;
    struct expert_serve_counts n = {0};
    pthread_t thread;
    atomic_bool stop;
    const struct expert_layer *layer[MOST_LAYERS];
    const uint64_t least = least_of(models[2]), one = 1;
    const uint32_t place = link_place(1, 1);
    int gate = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const struct fetch_hook hook = {&gate, gated_read, as_read, over};
    const struct ingle_engine_options o = {
        .n_ctx = 512, .threads = 2, .expert_bytes = least, .pack_cache = dir, .pack_write = true};
    must(ingle_model_open(&w.m, models[2], NULL, &error));
    must(ingle_engine_open(&w.e, w.m, &o, &error));
    expert_store_close(w.e->experts);
    w.e->experts = NULL;
    assert_int_equal(expert_store_open(&w.e->experts, w.e->weights,
                                       &(struct expert_store_options){
                                           .budget_bytes = least, .n_used = 2, .hook = &hook},
                                       &err),
                     INGLE_OK);
    assert_int_equal(engine_worker_describe(w.e, &hello, NULL), INGLE_OK);
    assert_true(hello.n_layers <= MOST_LAYERS);
    for (int64_t i = 0; i < hello.n_layers; i++)
        layer[i] = w.e->family->experts(w.e->self, i);
    atomic_init(&stop, false);
    const struct expert_serve_options so = {.address = at[0],
                                            .hello = &hello,
                                            .layer = layer,
                                            .store = w.e->experts,
                                            .sink = &w.e->sink,
                                            .stop = &stop};
    if (expert_serve_open(&s, w.e->device, &so, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(pthread_create(&thread, NULL, serve, s), 0);
    struct link *l = dial_with(&hello);
    struct link_head ask = {.kind = LINK_EVAL, .layer = 1, .n_rows = PAIRS, .n_pairs = PAIRS};
    const struct link_shape shape = {hello.n_layers, hello.n_experts, hello.hidden, PAIRS, PAIRS};
    const size_t n_bytes = link_eval_bytes(&ask, &shape);
    uint8_t *payload = mem_calloc(1, n_bytes);
    link_eval_begin(payload, 0, 0);
    for (uint32_t i = 0; i < PAIRS; i++) { /* a row for each of some experts */
        link_put_u32(payload + LINK_EVAL_BYTES + 4 * i, i);
        link_put_u32(payload + LINK_EVAL_BYTES + 4 * (PAIRS + i),
                     (uint32_t)((uint64_t)i * hello.n_experts / PAIRS));
    }
    bool ended = false;
    for (int round = 0; round < 10 && !ended; round++) { /* the CANCEL may come too late */
        for (ask.tag = 1; ask.tag <= 2; ask.tag++) {
            say(l, &ask, payload, n_bytes);
            if (ask.tag == 1)
                say(l, &(struct link_head){.kind = LINK_PLACE}, &place, sizeof place);
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000L << round}, NULL);
        say(l, &(struct link_head){.kind = LINK_CANCEL, .tag = 1}, NULL, 0);
        nanosleep(&(struct timespec){.tv_nsec = 1000000L << round}, NULL);
        assert_int_equal(write(gate, &one, sizeof one), sizeof one);
        for (uint64_t tag = 1; tag <= 2;) {
            next_of(l, &shape, &in, &got);
            char text[LINK_MAX_TEXT + 1] = "";
            if (got.kind == LINK_FAIL)
                link_fail_text(in.payload, in.n_payload, text);
            ended = ended || strstr(text, "while it was computed");
            if (got.kind != LINK_HAVE) { /* which PLACE is answered by */
                assert_true(got.tag == tag &&
                            (got.kind == LINK_RESULT || (got.kind == LINK_FAIL && tag == 1)));
                tag++;
            }
            link_in_release(&in);
        }
        uint64_t all;
        assert_int_equal(read(gate, &all, sizeof all), sizeof all);
    }
    assert_true(ended);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    expert_serve_count(s, &n);
    assert_true(n.stopped == 1 && n.cancelled >= 1 && n.refused == 0 && n.places > 0);
    link_close(l);
    expert_serve_close(s);
    mem_free(payload);
    close_world(&w);
    close(gate);
}

/* Rows through memory that both have: the same bits. */
static void rows_may_lie_in_shared_memory(void **state)
{
    (void)state;
    const char *path = models[2];
    const uint64_t plain = alone(path);
    struct helper h;
    start(&h, path, at[0], NULL, 0, NULL);
    for (int k = 0; k < 3; k++) { /* all, none, some by themselves */
        struct world w;
        struct ingle_engine_worker x;
        struct err err;
        open_world(&w, path, 0, at[0]);
        if (call_again(&w,
                       (struct expert_remote_options){
                           .shake = 11 + (uint64_t)k, .least_shared = k < 2, .no_share = k == 1},
                       at[0], &err))
            fail_msg("%s", err.msg);
        for (int i = 0; i < 60000 && k != 1 && ingle_engine_worker(w.e, 0, &x) && !x.shares; i++) {
            expert_remote_tend(w.e->workers);
            expert_worker_show(&w.e->workers->worker[0]);
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        assert_true(compute(&w) == plain);
        assert_true(ingle_engine_worker(w.e, 0, &x) && x.losses == 0 && x.redone == 0 &&
                    x.evals > 0);
        assert_true(k == 1 ? !x.shares && !x.shared : x.shares && (k == 2 || x.shared == x.evals));
        close_world(&w);
    }
    (void)stop(&h);
}

/* What an engine says is memory: it is refused without harm, and rows that are not there are. */
static void what_is_no_shared_memory_is_refused(void **state)
{
    (void)state;
    struct link_share good, got = {0};
    uint8_t hello[LINK_SHARE_HELLO], other[LINK_SHARE_HELLO];
    struct err err;
    assert_int_equal(link_share_create(&good, &err), INGLE_OK);
    link_share_write(&good, hello);
    assert_int_equal(link_share_open(&got, hello, &err), INGLE_OK);
    link_share_place(&good, LINK_SLOTS - 1, true)[LINK_SHARE_PLACE - 1] = 77;
    assert_int_equal(link_share_place(&got, LINK_SLOTS - 1, true)[LINK_SHARE_PLACE - 1], 77);
    assert_int_equal(ftruncate(good.fd, 0), -1); /* nobody can make it shorter */
    assert_int_equal(ftruncate(got.fd, 2 * (off_t)LINK_SHARE_BYTES), -1);
    link_share_close(&got);
    link_share_close(&got);
    memcpy(other, hello, sizeof other);
    other[16] ^= 1;
    assert_int_equal(link_share_open(&got, other, &err), INGLE_UNSUP);
    assert_non_null(strstr(err.msg, "another mark"));
    int pipes[2];
    const int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING),
              small = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(loose >= 0 && small >= 0 && pipe(pipes) == 0 &&
                ftruncate(loose, LINK_SHARE_BYTES) == 0);
    const struct { uint64_t pid, fd; const char *word;
    } bad[] = {{(uint64_t)getpid(), (uint64_t)loose, "not sealed"},
               {(uint64_t)getpid(), (uint64_t)small, "no memory"},
               {(uint64_t)getpid(), (uint64_t)pipes[0], "no memory"},
               {(uint64_t)getpid(), 99999, "cannot be opened"},
               {0, 1, "of process 0"},
               {UINT64_MAX, 1, "shared memory is descriptor"},
               {1, UINT64_MAX, "shared memory is descriptor"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(other, &bad[i].pid, 8);
        memcpy(other + 8, &bad[i].fd, 8);
        assert_true(link_share_open(&got, other, &err) != INGLE_OK && !got.at);
        if (!strstr(err.msg, bad[i].word))
            fail_msg("'%s' does not say '%s'", err.msg, bad[i].word);
    }
    struct helper h;
    struct world w;
    struct link_hello who;
    start(&h, models[2], at[0], NULL, 0, NULL);
    open_world(&w, models[2], 0, NULL);
    assert_int_equal(engine_worker_describe(w.e, &who, NULL), INGLE_OK);
    const uint64_t slot = 1;
    refused_for(&who,
                &(struct link_head){
                    .kind = LINK_EVAL, .layer = 1, .n_rows = 1, .n_pairs = 2, .flags = LINK_SHARED},
                &slot, 8, "of which there is none");
    refused_for(&who, &(struct link_head){.kind = LINK_SHARE}, NULL, 0, "only a worker");
    close_world(&w);
    (void)stop(&h);
    link_share_close(&good);
    close(loose);
    close(small);
    close(pipes[0]);
    close(pipes[1]);
}

/* An engine with little memory says which experts should be at its worker, which says that it has
 * them. */
static void experts_that_are_not_here_are_there(void **state)
{
    (void)state;
    const char *path = models[2];
    const uint64_t plain = alone(path);
    struct world w;
    struct ingle_experts here;
    struct ingle_engine_worker x = {0};
    struct helper h;
    start(&h, path, at[0], NULL, 0, NULL);
    open_world(&w, path, 0, NULL);
    assert_false(ingle_engine_experts(w.e, &here));
    const uint64_t least = expert_store_least(w.e->weights);
    close_world(&w);
    open_world(&w, path, least, at[0]);
    assert_true(compute(&w) == plain);
    for (int i = 0; i < 60000 && !(x.have && x.there_up_ns); i++) {
        expert_remote_tend(w.e->workers);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        assert_true(ingle_engine_worker(w.e, 0, &x));
    }
    assert_true(x.have > 0 && x.have <= x.slots && x.there_engines == 1 &&
                x.there_evals == x.evals && x.losses == 0);
    assert_true(compute(&w) == plain);
    close_world(&w);
    (void)stop(&h);
}

/* ---- who goes and comes ---- */

static void a_worker_that_comes_back_is_asked_again(void **state)
{
    (void)state;
    const char *path = models[2];
    const uint64_t plain = alone(path);
    struct world w;
    struct ingle_engine_worker x;
    struct err err;
    struct helper h;
    start(&h, path, at[0], NULL, 0, NULL);
    open_world(&w, path, 0, at[0]);
    if (call_again(&w, (struct expert_remote_options){.shake = 9}, at[0], &err))
        fail_msg("%s", err.msg);
    for (int k = 0; k < 2; k++) {
        assert_true(compute(&w) == plain);
        (void)stop(&h);
        assert_true(compute(&w) == plain);
        assert_true(ingle_engine_worker(w.e, 0, &x));
        assert_string_equal(x.state, "away");
        assert_int_equal(x.losses, k + 1);
        const uint64_t before = x.evals;
        start(&h, path, at[0], NULL, 0, NULL);
        for (int i = 0; i < 60000 && strcmp(x.state, "ready") != 0; i++) {
            expert_remote_tend(w.e->workers);
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
            assert_true(ingle_engine_worker(w.e, 0, &x));
        }
        assert_string_equal(x.state, "ready");
        assert_true(compute(&w) == plain);
        assert_true(ingle_engine_worker(w.e, 0, &x) && x.evals > before);
    }
    (void)stop(&h);
    close_world(&w);
}

int main(void)
{
    if (!link_is_built()) {
        print_message("built without libcrypto\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ends_finish_together),
        cmocka_unit_test(sizes_rise),
        cmocka_unit_test(whoever_computes_the_bits_are_the_same),
        cmocka_unit_test(two_workers_with_small_memory_and_ranges),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(who_does_not_fit_is_refused),
        cmocka_unit_test(keys_must_be_the_same),
        cmocka_unit_test(a_look_says_who_it_is),
        cmocka_unit_test(a_worker_may_do_anything),
        cmocka_unit_test(what_nobody_can_compute_is_an_error),
        cmocka_unit_test(an_engine_may_say_anything),
        cmocka_unit_test(what_is_not_wanted_is_not_computed),
        cmocka_unit_test(what_is_computed_already_ends_by_a_cancel),
        cmocka_unit_test(rows_may_lie_in_shared_memory),
        cmocka_unit_test(what_is_no_shared_memory_is_refused),
        cmocka_unit_test(experts_that_are_not_here_are_there),
        cmocka_unit_test(a_worker_that_comes_back_is_asked_again),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
