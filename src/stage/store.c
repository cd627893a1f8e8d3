/* SPDX-License-Identifier: Apache-2.0 */
#include "stage/store.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_BYTES = 64, LOOK_NS = 1000000000 };

/* What the engine has asked for, and has not heard the end of. */
struct keep {
    struct keep *next;
    struct stage_store *store;
    uint64_t tag, mark;
    bool over, ok;
    uint8_t *payload; /* owned: tables point into it */
    struct stage_table table[KV_MAX_GROUPS];
    int64_t length, have;
    const uint8_t *token; /* i32 [length], any address */
    uint64_t salt;
    struct kv_lender lender;
    struct kv_read *read; /* or NULL */
    struct kv_timeline *timeline;
};

struct keys { struct kv_key *key; size_t n, cap; };

struct stage_store {
    struct kv_store *kv;
    struct kv_pool *pool;
    struct kv_spec spec; /* of the parts that are kept; streams are borrowed */
    const struct kv_spec *whole;
    const struct stage_pages *pages;
    size_t at[KV_MAX_GROUPS]; /* where the part begins in a page */
    bool used[KV_MAX_GROUPS]; /* else its pages are `none` */
    uint8_t none[LEAST_BYTES];
    int64_t n_ctx, n_vocab;
    struct keep *keep;
    uint64_t looked_ns, number, changes; /* number: of the JOIN that got all */
    struct keys said, now;
    bool nomem;
};

/* Of each page one piece, which has all streams of layers [from, to) and those that they borrow. */
static void make_spec(struct stage_store *s, const struct stage_hello *h)
{
    size_t end[KV_MAX_GROUPS] = {0};
    s->spec = *s->whole;
    s->spec.n_own = 0;
    for (uint32_t i = 0; i < s->spec.n_streams; i++) {
        const struct kv_stream *st = &s->spec.stream[i];
        const uint32_t g = st->group;
        if (!st->twin && (st->layer < h->from || st->layer >= h->to))
            continue;
        s->at[g] = s->used[g] && s->at[g] < st->at ? s->at[g] : st->at;
        end[g] = st->at + st->n_bytes > end[g] ? st->at + st->n_bytes : end[g];
        s->used[g] = true;
    }
    for (uint32_t g = 0; g < s->spec.n_groups; g++) {
        s->spec.group[g].page_bytes = s->used[g] ? end[g] - s->at[g] : LEAST_BYTES;
        s->spec.group[g].own_at = s->spec.group[g].own_bytes = 0;
    }
}

ingle_status stage_store_open(struct stage_store **out, const struct stage_serve_options *o,
                              const struct kv_spec *spec, const struct stage_pages *pages,
                              struct err *err)
{
    struct stage_store *s = mem_zalloc(sizeof *s);
    char numerics[96];
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a store");
    s->whole = spec;
    s->pages = pages;
    s->n_ctx = o->hello->n_ctx;
    s->n_vocab = o->info->n_vocab;
    make_spec(s, o->hello);
    snprintf(numerics, sizeof numerics, "%s layers %u:%u", o->hello->numerics, o->hello->from,
             o->hello->to);
    const struct kv_store_options k = {.dir = o->store,
                                       .budget_bytes = o->store_bytes,
                                       .min_tokens = 1, /* the engine decides */
                                       .identity = o->identity,
                                       .model = o->model,
                                       .numerics = numerics,
                                       .codec = o->hello->kv};
    ingle_status st = kv_pool_create(&s->pool, &s->spec, UINT64_MAX / 4, o->sink, err);
    if (!st)
        st = kv_store_open(&s->kv, s->pool, &k, err);
    if (st)
        stage_store_close(s);
    else
        *out = s;
    return st;
}

void stage_store_close(struct stage_store *s)
{
    if (!s)
        return;
    stage_store_leave(s);
    kv_store_close(s->kv);
    kv_pool_free(s->pool);
    mem_free(s->said.key);
    mem_free(s->now.key);
    mem_free(s);
}

/* ---- what the engine asks for ---- */

static uint8_t *page_at(void *arg, uint32_t group, int64_t index)
{
    struct keep *k = arg;
    struct stage_store *s = k->store;
    if (!s->used[group])
        return s->none;
    const size_t n = s->whole->group[group].page_bytes;
    const uint64_t at = stage_table_page(&k->table[group], index);
    const struct stage_slab *p = at ? stage_pages_find(s->pages, at, n) : NULL;
    const bool is = p && p->page_bytes == n && (at - p->at) % n == 0;
    return is ? p->memory + (at - p->at) + s->at[group] : NULL;
}

static void end_read(struct keep *k)
{
    kv_store_read_drop(k->read);
    k->read = NULL;
    kv_timeline_free(k->timeline);
    k->timeline = NULL;
}

/* Nothing of it is used any more. */
static void end(struct keep *k)
{
    end_read(k);
    while (k->lender.n && kv_store_let_go(k->store->kv))
        ;
    (void)kv_store_poll(k->store->kv);
    mem_free(k->payload);
    mem_free(k);
}

void stage_store_leave(struct stage_store *s)
{
    while (s && s->keep) {
        struct keep *k = s->keep;
        s->keep = k->next;
        end(k);
    }
}

/* INGLE_FORMAT: it is not what it must be. */
static ingle_status parse(struct stage_store *s, struct keep *k, size_t n, struct err *err)
{
    struct wire_in w = {.at = k->payload, .cap = n};
    k->salt = stage_get_u64(&w);
    k->mark = stage_get_u64(&w);
    const uint64_t length = stage_get_u64(&w), have = stage_get_u64(&w);
    const uint32_t n_groups = stage_get_u32(&w);
    if (w.bad || !length || length > (uint64_t)s->n_ctx || have > length / KV_PAGE ||
        n_groups != s->spec.n_groups)
        return err_set(err, INGLE_FORMAT,
                       "a KEEP of %llu tokens, %llu pages of them there, in %u groups: the context "
                       "has %lld, a page %d, the model %u groups",
                       (unsigned long long)length, (unsigned long long)have, n_groups,
                       (long long)s->n_ctx, KV_PAGE, s->spec.n_groups);
    k->length = (int64_t)length;
    k->have = (int64_t)have;
    for (uint32_t g = 0; g < n_groups && !w.bad; g++) {
        struct stage_table *t = &k->table[g];
        t->first = stage_get_u32(&w);
        t->end = stage_get_u32(&w);
        const uint64_t most = (uint64_t)num_div_up(k->length, KV_PAGE);
        if (t->first > t->end || t->end > most)
            return err_set(err, INGLE_FORMAT, "a KEEP has pages %u to %u of %llu", t->first, t->end,
                           (unsigned long long)most);
        t->page = stage_get(&w, (size_t)(t->end - t->first) * sizeof(uint64_t));
    }
    k->token = stage_get(&w, (size_t)k->length * sizeof(int32_t));
    if (w.bad || w.n != w.cap)
        return err_set(err, INGLE_FORMAT, "a KEEP of %lld tokens has %zu bytes",
                       (long long)k->length, n);
    return INGLE_OK;
}

/* Its pages hold the tokens that the engine means, as far as the last one. */
static bool is_same(const struct stage_store *s, const struct keep *k)
{
    for (uint32_t g = 0; g < s->spec.n_groups; g++) {
        const uint64_t page = stage_table_page(&k->table[g], (k->length - 1) / KV_PAGE);
        const uint64_t *h = page ? stage_pages_hashes(s->pages, page) : NULL;
        if (h)
            return h[(k->length - 1) % KV_PAGE] == k->mark && k->mark;
    }
    return false;
}

static void save(struct stage_store *s, struct keep *k, const int32_t *tokens)
{
    k->over = true; /* except for its pages */
    if (is_same(s, k) && kv_timeline_lend(k->timeline, k->length, NULL) == INGLE_OK)
        k->ok = kv_store_put(s->kv, k->timeline, kv_scope_of(k->salt), tokens, 0, NULL, 0);
    kv_timeline_free(k->timeline);
    k->timeline = NULL;
}

static void begin_read(struct stage_store *s, struct keep *k, const int32_t *tokens)
{
    kv_timeline_assume(k->timeline, k->have * KV_PAGE);
    k->over = kv_store_read_begin(&k->read, s->kv, k->timeline, kv_scope_of(k->salt), tokens,
                                  k->length, NULL) != INGLE_OK;
    if (k->over)
        end_read(k);
}

static ingle_status ask(struct stage_store *s, struct keep *k, bool read, size_t n,
                        struct err *err)
{
    ingle_status st = parse(s, k, n, err);
    int32_t *tokens = st ? NULL : mem_calloc((size_t)k->length, sizeof *tokens);
    if (st)
        return st;
    k->lender = (struct kv_lender){page_at, k, 0};
    if (!tokens || kv_timeline_create(&k->timeline, s->pool, s->n_ctx, NULL)) {
        k->over = true; /* without it */
        mem_free(tokens);
        return INGLE_OK;
    }
    memcpy(tokens, k->token, (size_t)k->length * sizeof *tokens);
    kv_pool_lend(s->pool, &k->lender);
    if (read)
        begin_read(s, k, tokens);
    else
        save(s, k, tokens);
    kv_pool_lend(s->pool, NULL);
    mem_free(tokens);
    return INGLE_OK;
}

static void drop(struct stage_store *s, uint64_t tag)
{
    struct keep **at = &s->keep;
    while (*at && (*at)->tag != tag)
        at = &(*at)->next;
    struct keep *k = *at;
    if (!k)
        return;
    *at = k->next;
    end(k);
}

size_t stage_store_longest(const struct stage_store *s)
{
    const size_t pages = (size_t)num_div_up(s->n_ctx, KV_PAGE);
    return STAGE_KEEP_HEAD + s->spec.n_groups * 8 * (1 + pages) +
           (size_t)s->n_ctx * sizeof(int32_t);
}

/* INGLE_FORMAT, INGLE_LIMIT: it is not taken. */
static ingle_status check_room(const struct stage_store *s, const struct link_in *in,
                               const struct link_head *h, struct err *err)
{
    int n = 0;
    for (const struct keep *k = s->keep; k; k = k->next, n++)
        if (k->tag == h->tag)
            return err_set(err, INGLE_FORMAT, "a KEEP has the number %llu of another one",
                           (unsigned long long)h->tag);
    if (n >= STAGE_KEEPS)
        return err_set(err, INGLE_LIMIT, "%d prefixes are saved and read here, the limit is %d", n,
                       STAGE_KEEPS);
    if (in->n_payload > stage_store_longest(s))
        return err_set(err, INGLE_LIMIT,
                       "a KEEP has %zu bytes, the limit for a context of %lld tokens is %zu",
                       in->n_payload, (long long)s->n_ctx, stage_store_longest(s));
    return INGLE_OK;
}

ingle_status stage_store_receive(struct stage_store *s, const struct link_in *in,
                                 const struct link_head *h, struct err *err)
{
    if (!s || (h->flags != STAGE_KEEP_SAVE && h->flags != STAGE_KEEP_READ &&
               h->flags != STAGE_KEEP_DROP))
        return err_set(err, INGLE_FORMAT, "a KEEP of kind %u comes to a stage%s", h->flags,
                       s ? "" : " without a store");
    if (h->flags == STAGE_KEEP_DROP) {
        drop(s, h->tag);
        return INGLE_OK;
    }
    ingle_status st = check_room(s, in, h, err);
    if (st)
        return st;
    struct keep *k = mem_zalloc(sizeof *k);
    if (k)
        k->payload = mem_alloc(in->n_payload + 1);
    if (!k || !k->payload) {
        mem_free(k);
        return err_set(err, INGLE_NOMEM, "no memory for %zu bytes of a prefix", in->n_payload);
    }
    memcpy(k->payload, in->payload, in->n_payload);
    k->store = s;
    k->tag = h->tag;
    st = ask(s, k, h->flags == STAGE_KEEP_READ, in->n_payload, err);
    if (st) {
        end(k);
        return st;
    }
    k->next = s->keep;
    s->keep = k;
    return INGLE_OK;
}

void stage_store_give(struct stage_store *s, uint64_t at, uint64_t n)
{
    for (struct keep *k = s ? s->keep : NULL, *next; k; k = next) {
        bool has = false;
        next = k->next;
        for (uint32_t g = 0; g < s->spec.n_groups && (k->lender.n || k->read) && !has; g++)
            for (uint32_t i = k->table[g].first; i < k->table[g].end && !has; i++)
                has = stage_table_page(&k->table[g], i) - at < n;
        if (has)
            drop(s, k->tag);
    }
}

/* ---- what is said ---- */

/* All positions that were read are known by the mark. */
static void mark(const struct stage_store *s, const struct keep *k)
{
    for (uint32_t g = 0; g < s->spec.n_groups; g++)
        for (uint32_t i = k->table[g].first; i < k->table[g].end; i++) {
            uint64_t *h = stage_pages_hashes(s->pages, stage_table_page(&k->table[g], i));
            for (int j = 0; h && j < KV_PAGE; j++)
                h[j] = k->mark;
        }
}

static void go_on(struct stage_store *s, struct keep *k)
{
    void *what = NULL;
    size_t n;
    kv_pool_lend(s->pool, &k->lender);
    if (k->read && kv_store_read_poll(k->read)) {
        k->ok = kv_store_read_end(k->read, k->timeline, &what, &n, NULL) == INGLE_OK;
        k->over = true;
        k->read = NULL;
        mem_free(what);
        end_read(k);
        if (k->ok)
            mark(s, k);
    }
    kv_pool_lend(s->pool, NULL);
}

static int order(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct kv_key));
}

static void add_name(void *arg, struct kv_key key)
{
    struct stage_store *s = arg;
    if (s->now.n == STAGE_KEEP_MOST ||
        !mem_grow(&s->now.key, &s->now.cap, s->now.n + 1, sizeof *s->now.key)) {
        s->nomem = s->now.n < STAGE_KEEP_MOST;
        return;
    }
    s->now.key[s->now.n++] = key;
}

/* Those of a that b has not: the first ones of *out.  Both ascend. */
static size_t without(const struct keys *a, const struct keys *b, uint8_t *out, size_t most)
{
    size_t n = 0, j = 0;
    for (size_t i = 0; i < a->n && n < most; i++) {
        while (j < b->n && order(&b->key[j], &a->key[i]) < 0)
            j++;
        if (j < b->n && !order(&b->key[j], &a->key[i]))
            continue;
        if (out)
            memcpy(out + n * sizeof *a->key, &a->key[i], sizeof *a->key);
        n++;
    }
    return n;
}

/* Which prefixes there are, or what has changed of that. */
static void list(struct stage_store *s, uint64_t number,
                 void (*say)(void *arg, const struct link_head *h, struct link_out *m), void *arg)
{
    const bool anew = s->number != number;
    if (kv_store_looks(s->kv) && anew) /* the first time */
        return;
    if (!anew && kv_store_names(s->kv, NULL, NULL) == s->changes)
        return;
    s->now.n = 0;
    s->nomem = false;
    const uint64_t changes = kv_store_names(s->kv, add_name, s);
    if (s->now.n)
        qsort(s->now.key, s->now.n, sizeof *s->now.key, order);
    s->said.n = anew ? 0 : s->said.n;
    const size_t n_new = without(&s->now, &s->said, NULL, SIZE_MAX),
                 n_dropped = without(&s->said, &s->now, NULL, SIZE_MAX);
    const struct link_head h = {.kind = LINK_KEEP, .tag = number, .flags = STAGE_KEEP_LIST};
    const struct kv_key context = kv_store_context(s->kv);
    struct link_out m;
    if (s->nomem || !link_out_init(&m, STAGE_KEEP_LIST_HEAD + (n_new + n_dropped) * sizeof context))
        return;
    struct wire w = {.at = m.payload, .cap = m.n};
    stage_put(&w, &context, sizeof context);
    stage_put_u32(&w, anew);
    stage_put_u32(&w, n_new);
    stage_put_u32(&w, n_dropped);
    (void)without(&s->now, &s->said, w.at + w.n, n_new);
    (void)without(&s->said, &s->now, w.at + w.n + n_new * sizeof context, n_dropped);
    say(arg, &h, &m);
    const struct keys was = s->said;
    s->said = s->now;
    s->now = was;
    s->changes = changes;
    s->number = number;
}

bool stage_store_tend(struct stage_store *s, uint64_t number,
                      void (*say)(void *arg, const struct link_head *h, struct link_out *m),
                      void *arg)
{
    if (!s)
        return false;
    (void)kv_store_poll(s->kv);
    if (clock_now() - s->looked_ns > LOOK_NS) {
        s->looked_ns = clock_now();
        (void)kv_store_look(s->kv, false);
    }
    if (!number) {
        s->number = 0;
        return false;
    }
    for (struct keep *k = s->keep; k; k = k->next)
        go_on(s, k);
    list(s, number, say, arg); /* before the end of what has changed it */
    for (struct keep **at = &s->keep; *at;) {
        struct keep *k = *at;
        if (!k->over || k->lender.n) {
            at = &k->next;
            continue;
        }
        const struct link_head h = {
            .kind = LINK_KEEP, .tag = k->tag, .flags = STAGE_KEEP_DONE, .n_rows = k->ok};
        struct link_out m;
        *at = k->next;
        end(k);
        if (link_out_init(&m, 0))
            say(arg, &h, &m);
    }
    return s->keep != NULL || s->number != number;
}
