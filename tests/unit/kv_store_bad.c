/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are cut, flipped, forged or links: an error or a miss, never another content. */
#define _GNU_SOURCE
#include "unit/kv_depot.h"
#include "unit/mem_fail.h"

#include "kv/key.h"
#include "kv/store_file.h"

#include <sys/resource.h>

struct bytes {
    uint8_t *at;
    size_t n;
};

static struct bytes slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    struct bytes b = {.n = (size_t)ftell(f)};
    b.at = mem_alloc(b.n);
    rewind(f);
    assert_int_equal(fread(b.at, 1, b.n, f), b.n);
    fclose(f);
    return b;
}

static void spill(const char *path, const void *at, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(at, 1, n, f), n);
    fclose(f);
}

static const struct kv_save_options whose = {.identity = 42, .model = "a world", .codec = "f16"};

/* A saved session of 300 tokens, 20 more that wait, and a line to load it into. */
struct saved {
    struct depot *d;
    char path[128];
    struct bytes file;
};

static void saved_open(struct saved *s)
{
    struct err err;
    s->d = depot_open(1 << 20);
    struct world_line *l = &s->d->w.line[0];
    assert_int_equal(world_step(&s->d->w, l, 300, 300), INGLE_OK);
    snprintf(s->path, sizeof s->path, "%s/session", s->d->dir);
    if (kv_save(l->t, s->path, &whose, l->token, 320, "mark", 4, &err))
        fail_msg("%s", err.msg);
    s->file = slurp(s->path);
}

static void saved_close(struct saved *s)
{
    mem_free(s->file.at);
    depot_close(s->d);
}

static ingle_status load(struct saved *s, struct err *err)
{
    struct world_line *l = &s->d->w.line[1];
    int32_t *tokens = NULL;
    int64_t n = 0;
    void *mark = NULL;
    size_t mark_bytes = 0;
    const ingle_status st = kv_load(l->t, s->path, &whose, &tokens, &n, &mark, &mark_bytes, err);
    if (!st) {
        assert_int_equal(n, 320);
        assert_memory_equal(tokens, l->token, 320 * sizeof *tokens);
        assert_true(mark_bytes == 4 && memcmp(mark, "mark", 4) == 0);
        l->length = l->rewind_to = 300;
    }
    world_check(&s->d->w, l);
    mem_free(tokens);
    mem_free(mark);
    return st;
}

static void a_session_comes_back_from_its_file(void **state)
{
    (void)state;
    struct saved s;
    struct err err;
    saved_open(&s);
    assert_int_equal(load(&s, &err), INGLE_OK);
    assert_int_equal(world_step(&s.d->w, &s.d->w.line[1], 200, 200), INGLE_OK);
    world_check(&s.d->w, &s.d->w.line[1]);
    assert_int_equal(load(&s, &err), INGLE_OK);
    struct world_line *l = &s.d->w.line[2]; /* of nothing */
    assert_int_equal(kv_save(l->t, s.path, &whose, l->token, 0, NULL, 0, &err), INGLE_OK);
    int32_t *tokens;
    int64_t n;
    void *mark;
    size_t mark_bytes;
    assert_int_equal(kv_load(l->t, s.path, &whose, &tokens, &n, &mark, &mark_bytes, &err),
                     INGLE_OK);
    assert_true(n == 0 && mark_bytes == 0);
    mem_free(tokens);
    mem_free(mark);
    char none[128];
    snprintf(none, sizeof none, "%s/none/x", s.d->dir);
    assert_int_equal(kv_save(l->t, none, &whose, l->token, 0, NULL, 0, &err), INGLE_NOTFOUND);
    snprintf(none, sizeof none, "%s/", s.d->dir);
    assert_int_equal(kv_save(l->t, none, &whose, l->token, 0, NULL, 0, &err), INGLE_ARG);
    saved_close(&s);
}

static void every_cut_and_every_flip_is_seen(void **state)
{
    (void)state;
    struct saved s;
    struct err err;
    saved_open(&s);
    for (size_t n = 0; n < s.file.n; n += n < 600 ? 1 : 61) {
        spill(s.path, s.file.at, n);
        assert_int_equal(load(&s, &err), INGLE_FORMAT);
    }
    spill(s.path, s.file.at, s.file.n);
    const int fd = open(s.path, O_WRONLY);
    assert_true(fd >= 0);
    for (size_t bit = 0; bit < s.file.n * 8; bit += bit < 8 * 300 ? 1 : 211) {
        const uint8_t flipped = (uint8_t)(s.file.at[bit / 8] ^ (1 << bit % 8));
        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)(bit / 8)), 1);
        const ingle_status st = load(&s, &err);
        /* A version or byte order that we do not know is another matter than damage. */
        const bool named = bit / 8 >= 8 && bit / 8 < 16;
        if (st != (named ? INGLE_UNSUP : INGLE_FORMAT))
            fail_msg("bit %zu: %d", bit, (int)st);
        assert_int_equal(pwrite(fd, &s.file.at[bit / 8], 1, (off_t)(bit / 8)), 1);
    }
    close(fd);
    assert_int_equal(load(&s, &err), INGLE_OK);
    spill(s.path, s.file.at, s.file.n);
    FILE *f = fopen(s.path, "ab"); /* too long */
    fputc(0, f);
    fclose(f);
    assert_int_equal(load(&s, &err), INGLE_FORMAT);
    saved_close(&s);
}

static void seal(struct bytes *b)
{
    struct kv_file_header h;
    memcpy(&h, b->at, sizeof h);
    h.sum = kv_file_header_sum(&h);
    memcpy(b->at, &h, sizeof h);
}

/* The header says something else, and its checksum is right. */
static void forged_headers_are_refused(void **state)
{
    (void)state;
    static const uint64_t values[] = {0, 1, 2, 127, 299, 301, 321, 4096, 1 << 20, UINT32_MAX,
                                      UINT64_C(1) << 40, UINT64_C(1) << 41, INT64_MAX,
                                      UINT64_MAX / 16, UINT64_MAX - 4095, UINT64_MAX};
    static const size_t fields[] = {
        offsetof(struct kv_file_header, from),       offsetof(struct kv_file_header, length),
        offsetof(struct kv_file_header, n_tokens),   offsetof(struct kv_file_header, n_pages),
        offsetof(struct kv_file_header, mark_bytes), offsetof(struct kv_file_header, meta_bytes),
        offsetof(struct kv_file_header, file_bytes), offsetof(struct kv_file_header, n_groups),
        offsetof(struct kv_file_header, identity),   offsetof(struct kv_file_header, context),
        offsetof(struct kv_file_header, meta_sum)};
    struct saved s;
    struct err err;
    saved_open(&s);
    struct bytes b = {mem_alloc(s.file.n), s.file.n};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            memcpy(b.at, s.file.at, b.n);
            memcpy(b.at + fields[i], &values[k], sizeof values[k]);
            const bool shorter_mark =
                fields[i] == offsetof(struct kv_file_header, mark_bytes) && values[k] < 2048;
            if (memcmp(b.at, s.file.at, b.n) == 0 || shorter_mark)
                continue; /* no contradiction: a seal is no secret */
            seal(&b);
            spill(s.path, b.at, b.n);
            const ingle_status st = load(&s, &err);
            assert_true(st == INGLE_FORMAT || st == INGLE_UNSUP || st == INGLE_LIMIT);
        }
    /* A version that is to come. */
    const uint32_t version = KV_FILE_VERSION + 1;
    memcpy(b.at, s.file.at, b.n);
    memcpy(b.at + offsetof(struct kv_file_header, version), &version, sizeof version);
    seal(&b);
    spill(s.path, b.at, b.n);
    assert_int_equal(load(&s, &err), INGLE_UNSUP);
    assert_non_null(strstr(err.msg, "version 3, this program knows 2"));
    mem_free(b.at);
    saved_close(&s);
}

static void another_models_session_is_refused(void **state)
{
    (void)state;
    struct saved s;
    struct err err;
    saved_open(&s);
    struct world_line *l = &s.d->w.line[2];
    int32_t *tokens;
    int64_t n;
    void *mark;
    size_t mark_bytes;
    struct kv_save_options o = whose;
    o.identity = 43;
    assert_int_equal(kv_load(l->t, s.path, &o, &tokens, &n, &mark, &mark_bytes, &err), INGLE_UNSUP);
    assert_non_null(strstr(err.msg, "another model's ('a world')"));
    o = whose;
    o.numerics = "reference";
    assert_int_equal(kv_load(l->t, s.path, &o, &tokens, &n, &mark, &mark_bytes, &err), INGLE_UNSUP);
    assert_non_null(strstr(err.msg, "'f16 exact', not 'f16 reference'"));
    world_line_close(l);
    world_line_open(&s.d->w, 2, 310);
    assert_int_equal(kv_load(l->t, s.path, &whose, &tokens, &n, &mark, &mark_bytes, &err),
                     INGLE_LIMIT);
    world_check(&s.d->w, l);
    saved_close(&s);
}

static void running_out_of_memory_changes_nothing(void **state)
{
    (void)state;
    struct saved s;
    struct err err;
    saved_open(&s);
    ingle_status st = INGLE_NOMEM;
    for (int fail = 1; st; fail++) {
        mem_fail_in = fail;
        st = load(&s, &err);
        mem_fail_in = 0;
        assert_true(!st || st == INGLE_NOMEM || st == INGLE_LIMIT);
    }
    st = INGLE_NOMEM;
    const struct world_line *l = &s.d->w.line[0];
    for (int fail = 1; st; fail++) {
        mem_fail_in = fail;
        st = kv_save(l->t, s.path, &whose, l->token, 320, "mark", 4, &err);
        mem_fail_in = 0;
        assert_true(!st || st == INGLE_NOMEM);
    }
    assert_int_equal(load(&s, &err), INGLE_OK);
    saved_close(&s);
}

/* ---- in the store ---- */

static void last_path(void *arg, const char *path)
{
    strcpy(arg, path);
}

/* A store with one file of 300 tokens, closed. */
static struct depot *one_file(char path[512], struct bytes *file)
{
    struct depot *d = depot_open(1 << 20);
    depot_put(d, 0, 0, 300);
    kv_store_close(d->store);
    d->store = NULL;
    assert_int_equal(depot_files(d, last_path, path), 1);
    *file = slurp(path);
    return d;
}

static void damage_in_the_store_costs_a_recomputation(void **state)
{
    (void)state;
    char path[512];
    struct bytes file;
    struct depot *d = one_file(path, &file);
    for (size_t at = 0; at < file.n; at += at < 300 ? 7 : 797)
        for (int cut = 0; cut < 2; cut++) {
            file.at[at] ^= 16;
            spill(path, file.at, cut ? at : file.n);
            file.at[at] ^= 16;
            depot_open_store(d);
            d->n_warned = 0;
            const int64_t got = depot_get(d, 1, 0, 1000);
            assert_true(got <= 0);
            assert_int_equal(depot_get(d, 1, 0, 1000), 0);
            const bool foreign = !cut && at >= 8 && at < 16; /* another version's: left alone */
            assert_int_equal(d->n_warned, foreign ? 0 : 1);
            assert_int_equal(depot_files(d, NULL, NULL), foreign ? 1 : 0);
            assert_int_equal(depot_counts(d).damaged, foreign ? 0 : 1);
            kv_store_close(d->store);
        }
    spill(path, file.at, file.n);
    depot_open_store(d);
    assert_int_equal(depot_get(d, 1, 0, 1000), 300);
    mem_free(file.at);
    depot_close(d);
}

static void forged_files_of_the_store_are_refused(void **state)
{
    (void)state;
    char path[512];
    struct bytes file;
    struct depot *d = one_file(path, &file);
    struct kv_file_header h;
    for (int i = 0; i < 5; i++) {
        struct bytes b = {mem_alloc(file.n), file.n};
        memcpy(b.at, file.at, b.n);
        memcpy(&h, b.at, sizeof h);
        int32_t *token = (int32_t *)(void *)(b.at + sizeof h);
        switch (i) {
        case 0: token[17]++; break; /* other tokens than the name's */
        case 1: h.context.lo++; break;
        case 2: h.key.hi++; break;
        case 3: h.from = 128; break;
        case 4: h.n_tokens = 299; h.length = 299; break;
        }
        h.meta_sum = kv_sum(token, h.meta_bytes);
        h.sum = kv_file_header_sum(&h);
        memcpy(b.at, &h, sizeof h);
        spill(path, b.at, b.n);
        mem_free(b.at);
        depot_open_store(d);
        const int64_t got = depot_get(d, 1, 0, 1000);
        assert_true(got <= 0);
        kv_store_close(d->store);
    }
    mem_free(file.at);
    depot_open_store(d);
    depot_close(d);
}

/* From now on `n` more files can be opened; -1: as many as before. */
static void let_open(int n)
{
    static struct rlimit before;
    struct rlimit now;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    if (n < 0) {
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        return;
    }
    int fd[8];
    for (int i = 0; i <= n; i++)
        assert_true((fd[i] = dup(0)) >= 0);
    before = now;
    now.rlim_cur = (rlim_t)fd[n];
    for (int i = 0; i <= n; i++)
        close(fd[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
}

/* Scans are rare: until one has found the file. */
static void found_again(struct depot *d)
{
    int64_t n = 0;
    for (int i = 0; i < 1000000 && !n; i++)
        n = depot_find(d, 0, d->w.line[1].token, 1000, NULL);
    assert_int_equal(n, 300);
    assert_int_equal(depot_get(d, 1, 0, 1000), 300);
}

/* A process that has too many files open: what it cannot open now is good, is kept, and is used
 * later. */
static void a_file_that_cannot_be_opened_now_is_used_later(void **state)
{
    (void)state;
    char path[512];
    struct bytes file;
    struct depot *d = one_file(path, &file);
    for (int n = 0; n < 3; n++) {
        if (n < 2) /* the directory, or its file, cannot be opened for a scan */
            let_open(n + 1);  /* the store has one itself */
        depot_open_store(d);
        if (n == 2) { /* ... or the file for a read */
            assert_int_equal(depot_find(d, 0, d->w.line[1].token, 1000, NULL), 300);
            let_open(0);
        }
        d->n_warned = 0;
        assert_true(depot_get(d, 1, 0, 1000) <= 0);
        assert_int_equal(depot_get(d, 1, 0, 1000), 0);
        assert_int_equal(d->n_warned, n > 0);
        assert_int_equal(depot_counts(d).damaged, 0);
        let_open(-1);
        found_again(d);
        assert_int_equal(depot_counts(d).files, 1);
        kv_store_close(d->store);
        kv_timeline_clear(d->w.line[1].t);
        d->w.line[1].length = d->w.line[1].rewind_to = 0;
    }
    mem_free(file.at);
    depot_open_store(d);
    depot_close(d);
}

/* A full store gives up by value, not what it could not open. */
static void a_file_that_cannot_be_opened_now_is_no_victim(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    for (int i = 0; i < 3; i++) {
        d->w.line[i].token[0] = -i;
        depot_put(d, i, 0, i ? 300 : 900);
        kv_store_flush(d->store);
    }
    const uint64_t all = depot_counts(d).bytes;
    d->o.budget_bytes = all + 100;
    depot_reopen(d);
    assert_int_equal(depot_find(d, 0, d->w.line[0].token, 1000, NULL), 900);
    let_open(0);
    d->w.line[4].token[0] = 0;
    assert_int_equal(depot_get(d, 4, 0, 1000), -1); /* the one that saves most */
    let_open(-1);
    d->w.line[3].token[0] = -3;
    depot_put(d, 3, 0, 300);
    kv_store_flush(d->store);
    assert_in_range(depot_counts(d).evicted, 1, 2);
    int64_t n = 0;
    for (int i = 0; i < 1000000 && !n; i++)
        n = depot_find(d, 0, d->w.line[4].token, 1000, NULL);
    assert_int_equal(depot_get(d, 4, 0, 1000), 900);
    depot_close(d);
}

static void links_are_not_followed(void **state)
{
    (void)state;
    char path[512], elsewhere[128];
    struct bytes file;
    struct depot *d = one_file(path, &file);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", d->dir);
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    depot_open_store(d);
    assert_int_equal(depot_get(d, 1, 0, 1000), 0);
    assert_int_equal(d->n_warned, 1);
    assert_int_equal(access(elsewhere, R_OK), 0);
    assert_int_equal(access(path, F_OK), -1);
    kv_store_close(d->store);
    assert_int_equal(mkdir(path, 0700), 0); /* nor are directories removed */
    depot_open_store(d);
    assert_int_equal(depot_get(d, 1, 0, 1000), 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    depot_reopen(d);
    assert_int_equal(depot_get(d, 1, 0, 1000), 0);
    mem_free(file.at);
    depot_close(d);
}

/* ---- who has other parts ---- */

struct far { atomic_int begun; atomic_bool saves; };

static bool far_has(void *arg, struct kv_scope scope, struct kv_media *media, const int32_t *tokens,
                    int64_t length)
{
    const struct far *f = arg;
    (void)scope;
    (void)media;
    (void)tokens;
    (void)length;
    return atomic_load(&f->saves);
}

static uint64_t far_begin(void *arg, bool read, const struct kv_far_part *part)
{
    struct far *f = arg;
    assert_true(!read && part->n_pages > 0);
    return (uint64_t)atomic_fetch_add(&f->begun, 1) + 1;
}

static bool far_over(void *arg, uint64_t number, bool *ok)
{
    (void)arg;
    *ok = number > 0; /* it is believed only if the prefix is there */
    return true;
}

static void far_drop(void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
}

static int n_notes;

static void count_note(void *arg, ingle_report_level level, const char *kind, const char *subject,
                       const char *text)
{
    (void)arg;
    (void)level;
    (void)kind;
    (void)subject;
    n_notes += strstr(text, "other layers") != NULL;
}

/* One that cannot save is told once and asked again after a while, not for each prefix. */
static void others_that_cannot_save(void **state)
{
    (void)state;
    struct far f = {.begun = 0};
    const struct kv_far far = {&f, far_has, far_begin, far_over, far_drop};
    struct depot *d = depot_open(UINT64_MAX);
    d->sink.report = count_note;
    d->o.far = &far;
    n_notes = 0;
    for (int k = 0; k < 2; k++) { /* after a long time, and at once */
        d->o.retry_seconds = k ? 1e-9 : 1e6;
        depot_reopen(d);
        for (int i = 0; i < 3; i++) {
            depot_put(d, 0, 7, 40);
            kv_store_flush(d->store);
            (void)kv_store_poll(d->store);
        }
        assert_int_equal(atomic_load(&f.begun), k ? 4 : 1);
        assert_int_equal(n_notes, k + 1);
    }
    atomic_store(&f.saves, true);
    for (int i = 0; i < 2; i++) {
        depot_put(d, 0, 7, 40);
        kv_store_flush(d->store);
        (void)kv_store_poll(d->store);
        assert_int_equal(atomic_load(&f.begun), 5 + i);
        assert_int_equal(n_notes, 3); /* that it works again */
    }
    depot_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_comes_back_from_its_file),
        cmocka_unit_test(every_cut_and_every_flip_is_seen),
        cmocka_unit_test(forged_headers_are_refused),
        cmocka_unit_test(another_models_session_is_refused),
        cmocka_unit_test(running_out_of_memory_changes_nothing),
        cmocka_unit_test(damage_in_the_store_costs_a_recomputation),
        cmocka_unit_test(forged_files_of_the_store_are_refused),
        cmocka_unit_test(a_file_that_cannot_be_opened_now_is_used_later),
        cmocka_unit_test(a_file_that_cannot_be_opened_now_is_no_victim),
        cmocka_unit_test(links_are_not_followed),
        cmocka_unit_test(others_that_cannot_save),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
