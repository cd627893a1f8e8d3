/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefix - the tree of remembered prefixes.
 *
 * A node is a block of 128 tokens below its parent and holds the pages of the groups that keep
 * everything.  A point hangs on the node of its last whole block, with the tokens after it (its
 * tail), the partly filled pages, the pages of the windows, and the mark. A node lives as long as
 * something hangs below it.  The children and points of a node are one array of token runs in
 * lexicographic order, so that lookup compares tokens themselves and the longest common prefix
 * stands beside the place of the search.  Runs of a sparse prompt that end after where it begins
 * to be sparse stand apart, and those of a shortened one that end after its first gap.
 *
 * Node pages are those of the first timeline that was put; others with the same tokens have the
 * same rows (one arithmetic).  What else a session knows belongs into the mark.
 */
#include "kv/media.h"
#include "kv/timeline.h"

#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include <string.h>
#include <xxhash.h>

enum { N_GHOSTS = 64, SHARED_USES = 7 };

/* A restore point that is no more: how long it was, and a hash of its tokens. */
struct ghost {
    uint64_t salt, hash;
    struct kv_scope way;
    int64_t length; /* 0: nobody */
};

/* KV_PAGE tokens: a node; less: a point. */
struct run {
    const int32_t *token; /* [n], after the struct that this is the head of */
    int32_t n;
    struct kv_scope way; /* kv_scope_at() its end */
};

struct node {
    struct run run;
    struct node *parent;
    struct run **sub; /* [n_sub] sorted */
    size_t n_sub, cap_sub;
    size_t n_points;        /* of n_sub */
    struct node *next;      /* a root's: that of another salt */
    uint64_t salt;          /* a root's */
    uint64_t hash;          /* of all tokens down to here */
    int64_t from;           /* a guest's rows in page[] are there from this position on */
    struct kv_page *page[]; /* of the groups without a window, in order; then the tokens */
};

enum owed { OWED_NOT, OWED_PERHAPS, OWED }; /* PERHAPS: the store may have it */

struct kv_point {
    struct run run;
    struct node *node;
    int64_t length;
    int64_t from; /* of its timeline */
    void *mark; /* owned */
    size_t mark_bytes;
    uint64_t hits, used, clock; /* clock and use count of the tree when it was last used */
    double value;               /* as of then, or of when it was last looked at */
    size_t heap_at;
    struct kv_point *aside;
    enum owed owed; /* to the store */
    uint64_t event_name; /* its name for kv_watch.drop(); 0: it was not published */
    bool shared; /* other conversations are likely to begin with it */
    size_t n_pages;
    struct kv_page *page[]; /* group by group, ascending; then the tokens */
};

struct kv_tree {
    struct kv_pool *pool; /* borrowed */
    const struct kv_watch *watch; /* borrowed, or NULL */
    uint64_t budget_bytes;
    uint64_t own_bytes;     /* nodes, points and marks */
    double bytes_per_token; /* of all groups */
    size_t n_full;          /* groups without a window */
    uint64_t clock;         /* bytes ever put */
    uint64_t uses;
    struct node *root; /* that of salt 0, then those of others; a root has no parent */
    struct kv_point **heap; /* [n_heap], the least valuable first */
    size_t n_heap, cap_heap;
    struct ghost ghost[N_GHOSTS]; /* the last ones that were given up, in turn */
    size_t next_ghost;
    size_t n_owed; /* so many points are, or more than are: some were given up */
    int64_t n_lost; /* given up while the store lacked them */
};

/* ---- runs of tokens ---- */

static int64_t run_common(const struct run *r, const int32_t *q, int64_t n)
{
    int64_t i = 0;
    while (i < n && i < r->n && r->token[i] == q[i])
        i++;
    return i;
}

static bool same_way(struct kv_scope a, struct kv_scope b)
{
    return a.sparse == b.sparse && a.shorten.name == b.shorten.name;
}

static int run_order(const struct run *r, struct run q)
{
    if (r->way.sparse != q.way.sparse)
        return r->way.sparse < q.way.sparse ? -1 : 1;
    if (r->way.shorten.name != q.way.shorten.name)
        return r->way.shorten.name < q.way.shorten.name ? -1 : 1;
    const int64_t i = run_common(r, q.token, q.n);
    if (i == r->n || i == q.n)
        return (r->n > q.n) - (r->n < q.n);
    return r->token[i] < q.token[i] ? -1 : 1;
}

/* The number of runs that do not stand after q. */
static size_t node_search(const struct node *d, struct run q)
{
    size_t lo = 0, hi = d->n_sub;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (run_order(d->sub[mid], q) <= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct run *node_equal(const struct node *d, struct run q)
{
    const size_t i = node_search(d, q);
    return i && run_order(d->sub[i - 1], q) == 0 ? d->sub[i - 1] : NULL;
}

/* The block of q that ends at position `end`. */
static struct node *node_child(const struct node *d, const int32_t *q, int64_t end,
                               struct kv_scope scope)
{
    return (struct node *)node_equal(d, (struct run){q, KV_PAGE, kv_scope_at(scope, end)});
}

/* Prefixes of at most n tokens after `depth` are computed in this way. */
struct stretch {
    int64_t n;
    struct kv_scope way;
};
enum { MAX_STRETCHES = 3 };

/* Those of a scope after depth tokens, the longest first. */
static int stretches(struct kv_scope scope, int64_t depth, int64_t n,
                     struct stretch out[MAX_STRETCHES])
{
    const int64_t sparse = scope.sparse ? kv_sparse_from(scope.sparse) : INT64_MAX,
                  shorten = scope.shorten.name ? scope.shorten.from : INT64_MAX;
    const int64_t to[MAX_STRETCHES] = {depth + n, num_max(sparse, shorten),
                                       num_min(sparse, shorten)};
    int64_t last = INT64_MAX;
    int count = 0;
    for (int i = 0; i < MAX_STRETCHES; i++)
        if (to[i] >= depth && to[i] < last) {
            last = num_min(to[i], depth + n);
            out[count++] = (struct stretch){last - depth, kv_scope_at(scope, last)};
        }
    return count;
}

/* The point of d with the longest tail that q[n] begins with, of runs that are computed in one
 * way. */
static struct kv_point *node_prefix_as(const struct node *d, const int32_t *q, int64_t n,
                                       struct kv_scope way)
{
    n = num_min(n, KV_PAGE - 1);
    while (n >= 0) {
        const size_t i = node_search(d, (struct run){q, (int32_t)n, way});
        if (!i || !same_way(d->sub[i - 1]->way, way))
            return NULL;
        /* A shorter prefix of q has at most what q shares with the run before it. */
        const int64_t common = run_common(d->sub[i - 1], q, n);
        if (common == d->sub[i - 1]->n)
            return (struct kv_point *)d->sub[i - 1];
        n = common;
    }
    return NULL;
}

/* The longest of any that may be used; d is `depth` tokens deep. */
static struct kv_point *node_prefix(const struct node *d, const int32_t *q, int64_t n,
                                    int64_t depth, struct kv_scope scope)
{
    struct kv_point *p = NULL;
    struct stretch part[MAX_STRETCHES];
    const int n_parts = d->n_points ? stretches(scope, depth, n, part) : 0;
    for (int i = 0; i < n_parts && !p; i++)
        p = node_prefix_as(d, q, part[i].n, part[i].way);
    return p;
}

/* Tokens that q[n] shares with any run of d that may be used. */
static int64_t node_common(const struct node *d, const int32_t *q, int64_t n, int64_t depth,
                           struct kv_scope scope)
{
    int64_t most = 0;
    struct stretch part[MAX_STRETCHES];
    const int n_parts = stretches(scope, depth, n, part);
    for (int p = 0; p < n_parts; p++) {
        const size_t i = node_search(d, (struct run){q, (int32_t)part[p].n, part[p].way});
        for (size_t k = i ? i - 1 : 0; k <= i && k < d->n_sub; k++)
            if (same_way(d->sub[k]->way, part[p].way))
                most = num_max(most, run_common(d->sub[k], q, part[p].n));
    }
    return most;
}

static void node_insert(struct node *d, struct run *r)
{
    const size_t i = node_search(d, *r);
    memmove(&d->sub[i + 1], &d->sub[i], (d->n_sub - i) * sizeof d->sub[0]);
    d->sub[i] = r;
    d->n_sub++;
    d->n_points += r->n < KV_PAGE;
}

static void node_remove(struct node *d, const struct run *r)
{
    const size_t i = node_search(d, *r) - 1;
    BUG_IF(d->sub[i] != r);
    d->n_sub--;
    d->n_points -= r->n < KV_PAGE;
    memmove(&d->sub[i], &d->sub[i + 1], (d->n_sub - i) * sizeof d->sub[0]);
}

/* The hash of a prefix goes on from that of its blocks before; it begins with the salt. */
static uint64_t run_hash(uint64_t hash, const int32_t *tokens, int64_t n)
{
    return XXH3_64bits_withSeed(tokens, (size_t)n * sizeof *tokens, hash);
}

/* ---- nodes ---- */

static size_t node_bytes(const struct kv_tree *t)
{
    return sizeof(struct node) + t->n_full * sizeof(struct kv_page *) + KV_PAGE * sizeof(int32_t) +
           sizeof(struct run *);
}

/* Block i of the timeline, not yet below its parent; NULL: out of memory. */
static struct node *node_create(struct kv_tree *t, struct node *parent,
                                const struct kv_timeline *from, const int32_t *tokens, int64_t i,
                                struct kv_scope scope)
{
    struct node *d = mem_zalloc(node_bytes(t));
    if (!d)
        return NULL;
    int32_t *token = (int32_t *)(void *)&d->page[t->n_full];
    memcpy(token, tokens, KV_PAGE * sizeof token[0]);
    d->run =
        (struct run){.token = token, .n = KV_PAGE, .way = kv_scope_at(scope, (i + 1) * KV_PAGE)};
    d->parent = parent;
    d->hash = run_hash(parent->hash, tokens, KV_PAGE);
    d->from = num_min(from->from, (i + 1) * KV_PAGE);
    size_t k = 0;
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++)
        if (!t->pool->spec->group[g].window) {
            d->page[k] = from->table[g].page[i];
            kv_page_hold(t->pool, d->page[k++]);
        }
    t->own_bytes += node_bytes(t);
    return d;
}

/* The root of a salt, or NULL. */
static struct node *root_find(const struct kv_tree *t, uint64_t salt)
{
    struct node *d = t->root;
    while (d && d->salt != salt)
        d = d->next;
    return d;
}

/* The same, made where it is not there; roots below which nothing hangs any more go.
 * NULL: out of memory. */
static struct node *root_make(struct kv_tree *t, uint64_t salt)
{
    struct node *d = root_find(t, salt);
    if (d)
        return d;
    for (struct node **at = &t->root->next; *at;) {
        d = *at;
        if (d->n_sub) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        mem_free(d->sub);
        mem_free(d);
    }
    d = mem_zalloc(sizeof *d);
    if (!d)
        return NULL;
    d->salt = d->hash = salt;
    d->next = t->root->next;
    t->root->next = d;
    return d;
}

/* Ends d and those above it below which nothing hangs any more; returns who is left. */
static struct node *node_prune(struct kv_tree *t, struct node *d)
{
    while (d->parent && !d->n_sub) {
        struct node *parent = d->parent;
        node_remove(parent, &d->run);
        for (size_t k = 0; k < t->n_full; k++)
            kv_page_let(t->pool, d->page[k]);
        t->own_bytes -= node_bytes(t);
        mem_free(d->sub);
        mem_free(d);
        d = parent;
    }
    return d;
}

/* ---- value and order ---- */

static size_t point_bytes(const struct kv_point *p)
{
    return sizeof *p + p->n_pages * sizeof p->page[0] + (size_t)p->run.n * sizeof(int32_t) +
           p->mark_bytes + 2 * sizeof(void *);
}

struct share {
    uint64_t held;  /* bytes that the tree would let go with this point */
    uint64_t freed; /* of those, bytes of pages that nobody else refers to */
};

static void share_page(struct share *s, const struct kv_page *pg)
{
    if (pg->held != 1)
        return;
    s->held += kv_page_memory(pg);
    if (pg->refs == 1)
        s->freed += kv_page_memory(pg);
}

static struct share point_share(const struct kv_tree *t, const struct kv_point *p)
{
    struct share s = {.held = point_bytes(p)};
    for (size_t i = 0; i < p->n_pages; i++)
        share_page(&s, p->page[i]);
    for (const struct node *d = p->node; d->parent && d->n_sub == 1; d = d->parent) {
        s.held += node_bytes(t);
        for (size_t k = 0; k < t->n_full; k++)
            share_page(&s, d->page[k]);
    }
    return s;
}

/* Tokens to compute again without p: those after the next shorter point. */
static int64_t point_cost(const struct kv_point *p)
{
    int64_t depth = p->length - p->run.n;
    const struct kv_point *before =
        node_prefix(p->node, p->run.token, p->run.n - 1, depth, p->run.way);
    for (const struct node *d = p->node; !before && d->parent; d = d->parent)
        before = node_prefix(d->parent, d->run.token, KV_PAGE - 1, depth -= KV_PAGE, p->run.way);
    return p->length - (before ? before->length : 0);
}

/* Least recently used goes first, in bytes put since then, with a credit of up to two
 * turnovers of the budget for points that were often used or save much for what they
 * hold.  Worth 1 is a point that saves as many tokens as its bytes are rows; one that is
 * shared counts as if it had been used already. */
static double point_value(const struct kv_tree *t, const struct kv_point *p)
{
    const double saved = (double)point_cost(p) * t->bytes_per_token;
    const double uses = (double)(1 + p->hits + (p->shared ? SHARED_USES : 0));
    const double worth = uses * saved / (double)point_share(t, p).held;
    return (double)p->clock + (double)t->budget_bytes / 4 * (worth < 8 ? worth : 8);
}

static bool heap_before(const struct kv_point *a, const struct kv_point *b)
{
    return a->value < b->value || (a->value <= b->value && a->used < b->used);
}

static void heap_set(struct kv_tree *t, size_t i, struct kv_point *p)
{
    t->heap[i] = p;
    p->heap_at = i;
}

/* Moves the point at i to where its value belongs. */
static void heap_move(struct kv_tree *t, size_t i)
{
    struct kv_point *p = t->heap[i];
    for (; i && heap_before(p, t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap_set(t, i, t->heap[(i - 1) / 2]);
    for (size_t k; (k = 2 * i + 1) < t->n_heap; i = k) {
        if (k + 1 < t->n_heap && heap_before(t->heap[k + 1], t->heap[k]))
            k++;
        if (!heap_before(t->heap[k], p))
            break;
        heap_set(t, i, t->heap[k]);
    }
    heap_set(t, i, p);
}

/* There is room: kv_tree_put() made it. */
static void heap_push(struct kv_tree *t, struct kv_point *p)
{
    t->heap[t->n_heap++] = p;
    heap_move(t, t->n_heap - 1);
}

static void heap_remove(struct kv_tree *t, size_t i)
{
    struct kv_point *last = t->heap[--t->n_heap];
    if (i == t->n_heap)
        return;
    t->heap[i] = last;
    heap_move(t, i);
}

static void point_revalue(struct kv_tree *t, struct kv_point *p)
{
    p->value = point_value(t, p);
    heap_move(t, p->heap_at);
}

static void point_use(struct kv_tree *t, struct kv_point *p)
{
    p->clock = t->clock;
    p->used = ++t->uses;
}

/* Takes the least valuable point out of the heap.  Values in the heap may be too low,
 * when others have come to share what a point holds: such a point moves on. */
static struct kv_point *heap_pop(struct kv_tree *t)
{
    while (t->n_heap) {
        struct kv_point *p = t->heap[0];
        const double value = point_value(t, p);
        if (value <= p->value) {
            heap_remove(t, 0);
            return p;
        }
        p->value = value;
        heap_move(t, 0);
    }
    return NULL;
}

/* ---- points ---- */

/* The first page of group g that a point of this length has itself; after the last one
 * if it has none. */
static int64_t point_first(const struct kv_tree *t, uint32_t g, int64_t length)
{
    return t->pool->spec->group[g].window ? kv_timeline_first(t->pool->spec, g, length)
                                          : length / KV_PAGE;
}

static void point_free(struct kv_point *p)
{
    if (!p)
        return;
    mem_free(p->mark);
    mem_free(p);
}

/* With the mark, without pages; NULL: out of memory. */
static struct kv_point *point_create(const struct kv_tree *t, struct kv_scope scope,
                                     const int32_t *tokens, int64_t length, const void *mark,
                                     size_t mark_bytes)
{
    const int64_t end = num_div_up(length, KV_PAGE), n_tail = length % KV_PAGE;
    size_t n_pages = 0, n_bytes = 0;
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++)
        n_pages += (size_t)(end - point_first(t, g, length));
    const size_t tail_bytes = (size_t)n_tail * sizeof(int32_t);
    struct kv_point *p = NULL;
    if (num_mul(n_pages, sizeof p->page[0], &n_bytes) &&
        num_add(n_bytes, sizeof *p + tail_bytes, &n_bytes))
        p = mem_zalloc(n_bytes);
    if (p && mark_bytes)
        p->mark = mem_alloc(mark_bytes);
    if (!p || (mark_bytes && !p->mark)) {
        point_free(p);
        return NULL;
    }
    if (mark_bytes)
        memcpy(p->mark, mark, mark_bytes);
    int32_t *token = (int32_t *)(void *)&p->page[n_pages];
    memcpy(token, tokens + (length - n_tail), tail_bytes);
    p->run = (struct run){.token = token, .n = (int32_t)n_tail, .way = kv_scope_at(scope, length)};
    p->length = length;
    p->mark_bytes = mark_bytes;
    p->n_pages = n_pages;
    return p;
}

/* Hangs p below its node, with the pages of the timeline. */
static void point_hang(struct kv_tree *t, struct kv_point *p, struct node *d,
                       const struct kv_timeline *from)
{
    p->node = d;
    p->from = from->from;
    size_t k = 0;
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++)
        for (int64_t i = point_first(t, g, p->length); i < num_div_up(p->length, KV_PAGE); i++) {
            p->page[k] = from->table[g].page[i];
            kv_page_hold(t->pool, p->page[k++]);
        }
    t->own_bytes += point_bytes(p);
    node_insert(d, &p->run);
}

/* Ends p, which is not in the heap.  A point that is alone on its branch then holds more
 * than before, and is valued again. */
static void point_drop(struct kv_tree *t, struct kv_point *p)
{
    if (p->event_name && t->watch)
        t->watch->drop(t->watch->arg, false, p->event_name);
    node_remove(p->node, &p->run);
    for (size_t i = 0; i < p->n_pages; i++)
        kv_page_let(t->pool, p->page[i]);
    t->own_bytes -= point_bytes(p);
    const struct node *d = node_prune(t, p->node);
    point_free(p);
    while (d->n_sub == 1 && d->sub[0]->n == KV_PAGE)
        d = (struct node *)d->sub[0];
    if (d->n_sub == 1) {
        struct kv_point *heir = (struct kv_point *)d->sub[0];
        if (heir->heap_at < t->n_heap && t->heap[heir->heap_at] == heir)
            point_revalue(t, heir);
    }
}

static uint64_t tree_bytes(const struct kv_tree *t)
{
    return t->pool->held_bytes + t->own_bytes;
}

/* ---- ghosts: what was given up recently, so that a miss can say why ---- */

static void ghost_add(struct kv_tree *t, const struct kv_point *p)
{
    struct ghost *g = &t->ghost[t->next_ghost++ % N_GHOSTS];
    const struct node *root = p->node;
    while (root->parent)
        root = root->parent;
    *g = (struct ghost){root->salt, run_hash(p->node->hash, p->run.token, p->run.n), p->run.way,
                        p->length};
}

int64_t kv_tree_given_up(const struct kv_tree *t, struct kv_scope scope, const int32_t *tokens,
                         int64_t n_tokens, int64_t above)
{
    int64_t found = 0, longest = 0;
    for (size_t i = 0; i < N_GHOSTS; i++)
        if (t->ghost[i].salt == scope.salt && t->ghost[i].length <= n_tokens)
            longest = num_max(longest, t->ghost[i].length);
    uint64_t hash = scope.salt;
    for (int64_t at = 0; at <= longest; at += KV_PAGE) {
        for (size_t i = 0; i < N_GHOSTS; i++) {
            const struct ghost *g = &t->ghost[i];
            const bool here = g->length && g->salt == scope.salt &&
                              same_way(g->way, kv_scope_at(scope, g->length)) &&
                              g->length / KV_PAGE == at / KV_PAGE && g->length > above &&
                              g->length <= n_tokens;
            if (here && run_hash(hash, tokens + at, g->length - at) == g->hash)
                found = num_max(found, g->length);
        }
        if (n_tokens - at >= KV_PAGE)
            hash = run_hash(hash, tokens + at, KV_PAGE);
    }
    return found;
}

static void tree_give_up(struct kv_tree *t, struct kv_point *p, const char *why)
{
    const int64_t length = p->length;
    ghost_add(t, p);
    t->n_lost += p->owed == OWED;
    point_drop(t, p);
    t->pool->evicted_points++;
    report(t->pool->sink, INGLE_REPORT_DEBUG, "cache", "prefix",
           "a restore point of %lld tokens was given up: %s", (long long)length, why);
}

/* For the pool: the least valuable point whose end frees pages now, or else the least
 * valuable one (then pages are its and another point's, or become a timeline's own). */
static bool tree_evict(void *arg)
{
    struct kv_tree *t = arg;
    struct kv_point *aside = NULL, *p;
    while ((p = heap_pop(t)) && !point_share(t, p).freed) {
        p->aside = aside;
        aside = p;
    }
    if (!p && kv_page_let_go(t->pool)) { /* the store kept what this would have freed */
        for (; aside; aside = aside->aside)
            heap_push(t, aside);
        return true;
    }
    while (aside) {
        struct kv_point *next = aside->aside;
        if (!p && !next)
            p = aside; /* popped first */
        else
            heap_push(t, aside);
        aside = next;
    }
    if (!p)
        return false;
    tree_give_up(t, p, "its pages are needed");
    return true;
}

/* ---- the door ---- */

ingle_status kv_tree_create(struct kv_tree **out, struct kv_pool *p, uint64_t budget_bytes,
                            struct err *err)
{
    if (p->evict)
        return err_set(err, INGLE_ARG, "the KV pool has a prefix tree already");
    struct kv_tree *t = mem_zalloc(sizeof *t);
    struct node *root = mem_zalloc(sizeof *root);
    if (!t || !root) {
        mem_free(t);
        mem_free(root);
        return err_set(err, INGLE_NOMEM, "no memory for a prefix tree");
    }
    t->pool = p;
    t->budget_bytes = budget_bytes;
    t->root = root;
    for (uint32_t g = 0; g < p->spec->n_groups; g++) {
        t->bytes_per_token += (double)p->spec->group[g].page_bytes / (double)KV_PAGE;
        t->n_full += !p->spec->group[g].window;
    }
    p->evict = tree_evict;
    p->evict_arg = t;
    *out = t;
    return INGLE_OK;
}

void kv_tree_watch(struct kv_tree *t, const struct kv_watch *watch) { t->watch = watch; }

void kv_tree_clear(struct kv_tree *t)
{
    while (t->n_heap) {
        struct kv_point *p = t->heap[--t->n_heap];
        point_drop(t, p);
    }
}

void kv_tree_free(struct kv_tree *t)
{
    if (!t)
        return;
    kv_tree_clear(t);
    BUG_IF(t->own_bytes || t->pool->held_bytes);
    t->pool->evict = NULL;
    t->pool->evict_arg = NULL;
    for (struct node *d = t->root, *next; d; d = next) {
        next = d->next;
        BUG_IF(d->n_sub);
        mem_free(d->sub);
        mem_free(d);
    }
    mem_free(t->heap);
    mem_free(t);
}

void kv_tree_count(const struct kv_tree *t, struct kv_tree_counts *out)
{
    *out = (struct kv_tree_counts){.points = (int64_t)t->n_heap,
                                   .bytes = tree_bytes(t),
                                   .budget_bytes = t->budget_bytes,
                                   .lost = t->n_lost};
    for (size_t i = 0; i < t->n_heap; i++)
        out->owed += t->heap[i]->owed == OWED;
}

/* What a point of this length holds if nothing is shared. */
static bool tree_only_bytes(const struct kv_tree *t, const struct kv_point *p,
                            const struct kv_timeline *from, uint64_t *out)
{
    uint64_t sum = point_bytes(p), bytes;
    const uint64_t n_blocks = (uint64_t)(p->length / KV_PAGE);
    if (!num_mul_u64(n_blocks, node_bytes(t), &bytes) || !num_add_u64(sum, bytes, &sum))
        return false;
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++) {
        const int64_t end = num_div_up(p->length, KV_PAGE);
        int64_t first = t->pool->spec->group[g].window ? point_first(t, g, p->length) : 0;
        for (int64_t i = first; i < end && kv_disk_has(t->pool, g); i++)
            first += from->table[g].page[i] && !from->table[g].page[i]->at; /* on disk: no memory */
        if (!num_mul_u64((uint64_t)(end - first), t->pool->spec->group[g].page_bytes, &bytes) ||
            !num_add_u64(sum, bytes, &sum))
            return false;
    }
    *out = sum;
    return true;
}

/* The node of n_blocks whole blocks, made where it is not there, with room below it for one
 * more run.  NULL: out of memory, nothing has changed. */
static struct node *tree_reach(struct kv_tree *t, struct kv_scope scope,
                               const struct kv_timeline *from, const int32_t *tokens,
                               int64_t n_blocks)
{
    struct node *d = root_make(t, scope.salt);
    for (int64_t i = 0; d && i < n_blocks; i++) {
        struct node *child = node_child(d, tokens + i * KV_PAGE, (i + 1) * KV_PAGE, scope);
        if (!child) {
            if (mem_grow(&d->sub, &d->cap_sub, d->n_sub + 1, sizeof d->sub[0]))
                child = node_create(t, d, from, tokens + i * KV_PAGE, i, scope);
            if (!child)
                goto nomem;
            node_insert(d, &child->run);
        }
        d = child;
    }
    if (d && mem_grow(&d->sub, &d->cap_sub, d->n_sub + 1, sizeof d->sub[0]))
        return d;
nomem:
    if (d)
        node_prune(t, d);
    return NULL;
}

/* The node of all whole blocks that are there already; NULL: not even the salt's root. */
static struct node *tree_walk(const struct kv_tree *t, struct kv_scope scope, const int32_t *tokens,
                              int64_t n_tokens, int64_t *depth)
{
    struct node *d = root_find(t, scope.salt);
    for (*depth = 0; d && n_tokens - *depth >= KV_PAGE; *depth += KV_PAGE) {
        struct node *child = node_child(d, tokens + *depth, *depth + KV_PAGE, scope);
        if (!child)
            break;
        d = child;
    }
    return d;
}

static struct kv_point *tree_equal(const struct kv_tree *t, struct kv_scope scope,
                                   const int32_t *tokens, int64_t n_tokens)
{
    int64_t depth;
    const struct node *d = tree_walk(t, scope, tokens, n_tokens, &depth);
    if (!d || n_tokens - depth >= KV_PAGE)
        return NULL;
    return (struct kv_point *)node_equal(
        d, (struct run){tokens + depth, (int32_t)(n_tokens - depth), kv_scope_at(scope, n_tokens)});
}

ingle_status kv_tree_put(struct kv_tree *t, struct kv_scope scope, const struct kv_timeline *from,
                         const int32_t *tokens, int64_t n_tokens, const void *mark,
                         size_t mark_bytes, struct err *err)
{
    BUG_IF(from->pool != t->pool);
    if (n_tokens != from->length)
        return err_set(err, INGLE_ARG, "a restore point of %lld tokens of a timeline of %lld",
                       (long long)n_tokens, (long long)from->length);
    if (!n_tokens || kv_timeline_is_lost(from))
        return INGLE_OK;
    struct kv_point *p = tree_equal(t, scope, tokens, n_tokens);
    if (p) {
        point_use(t, p);
        point_revalue(t, p);
        return INGLE_OK;
    }
    if (!mem_grow(&t->heap, &t->cap_heap, t->n_heap + 1, sizeof t->heap[0]))
        goto nomem;
    p = point_create(t, scope, tokens, n_tokens, mark, mark_bytes);
    if (!p)
        goto nomem;
    uint64_t tree_only = UINT64_MAX;
    if (!tree_only_bytes(t, p, from, &tree_only) || tree_only > t->budget_bytes) {
        report(t->pool->sink, INGLE_REPORT_NOTE, "cache", "prefix",
               "a restore point of %lld tokens is not stored: its %llu bytes exceed the budget of "
               "%llu",
               (long long)n_tokens, (unsigned long long)tree_only,
               (unsigned long long)t->budget_bytes);
        point_free(p);
        return INGLE_OK;
    }
    const uint64_t before = tree_bytes(t);
    struct node *d = tree_reach(t, scope, from, tokens, n_tokens / KV_PAGE);
    if (!d)
        goto nomem;
    point_hang(t, p, d, from);
    t->clock += tree_bytes(t) - before;
    while (tree_bytes(t) > t->budget_bytes) {
        struct kv_point *other = heap_pop(t);
        /* p fits alone, unless others have in memory what it has on disk */
        BUG_IF(!other && !t->pool->disk);
        if (!other)
            break;
        tree_give_up(t, other, "the prefix cache is full");
    }
    point_use(t, p);
    p->value = point_value(t, p);
    heap_push(t, p);
    if (t->watch)
        p->event_name =
            kv_media_publish(kv_pool_media(t->pool), t->watch, false, scope, tokens, n_tokens);
    return INGLE_OK;

nomem:
    point_free(p);
    return err_set(err, INGLE_NOMEM, "no memory for a restore point of %lld tokens",
                   (long long)n_tokens);
}

bool kv_tree_use(struct kv_tree *t, struct kv_scope scope, const int32_t *tokens, int64_t n_tokens,
                 bool shared)
{
    struct kv_point *p = tree_equal(t, scope, tokens, n_tokens);
    if (!p)
        return false;
    p->shared = p->shared || shared;
    point_use(t, p);
    point_revalue(t, p);
    return true;
}

void kv_tree_owe(struct kv_tree *t, struct kv_scope scope, const int32_t *tokens, int64_t n_tokens)
{
    struct kv_point *p = tree_equal(t, scope, tokens, n_tokens);
    t->n_lost += !p;
    if (!p)
        return;
    t->n_owed += !p->owed;
    p->owed = OWED;
}

void kv_tree_owe_all(struct kv_tree *t)
{
    for (size_t i = 0; i < t->n_heap; i++)
        t->heap[i]->owed = t->heap[i]->owed ? t->heap[i]->owed : OWED_PERHAPS;
    t->n_owed = t->n_heap;
}

/* A copy of all tokens of p; NULL: no memory. */
static int32_t *point_tokens(const struct kv_point *p, struct kv_scope *scope)
{
    int32_t *out = mem_calloc((size_t)p->length, sizeof *out);
    const struct node *d = p->node;
    int64_t at = p->length - p->run.n;
    if (out && p->run.n)
        memcpy(out + at, p->run.token, (size_t)p->run.n * sizeof *out);
    for (; d->parent; d = d->parent) {
        at -= d->run.n;
        if (out)
            memcpy(out + at, d->run.token, (size_t)d->run.n * sizeof *out);
    }
    *scope = p->run.way;
    scope->salt = d->salt;
    return out;
}

const struct kv_point *kv_tree_owed(struct kv_tree *t, struct kv_scope *scope, int32_t **tokens,
                                    int64_t *n_tokens)
{
    struct kv_point *p = NULL;
    for (size_t i = 0; t->n_owed && i < t->n_heap; i++)
        if (t->heap[i]->owed && (!p || t->heap[i]->length < p->length))
            p = t->heap[i];
    if (!p) {
        t->n_owed = 0;
        return NULL;
    }
    p->owed = OWED_NOT;
    t->n_owed--;
    *n_tokens = p->length;
    *tokens = point_tokens(p, scope);
    return *tokens ? p : NULL;
}

void kv_tree_find(struct kv_tree *t, struct kv_scope scope, const int32_t *tokens, int64_t n_tokens,
                  int64_t limit, struct kv_match *out)
{
    *out = (struct kv_match){0};
    if (n_tokens < 1)
        return;
    int64_t depth;
    const struct node *d = tree_walk(t, scope, tokens, n_tokens, &depth);
    if (!d)
        return;
    out->matched =
        depth + node_common(d, tokens + depth, num_min(n_tokens - depth, KV_PAGE), depth, scope);

    limit = num_min(limit, n_tokens);
    for (; d; d = d->parent, depth -= KV_PAGE) {
        const struct kv_point *p =
            limit < depth ? NULL : node_prefix(d, tokens + depth, limit - depth, depth, scope);
        if (!p)
            continue;
        out->point = p;
        out->length = p->length;
        out->mark = p->mark;
        out->mark_bytes = p->mark_bytes;
        return;
    }
}

ingle_status kv_timeline_attach(struct kv_timeline *l, struct kv_tree *t,
                                const struct kv_point *point, struct err *err)
{
    struct kv_point *p = t->heap[point->heap_at];
    BUG_IF(p != point || l->pool != t->pool);
    if (p->length > l->max_tokens)
        return err_set(err, INGLE_LIMIT,
                       "a restore point of %lld tokens exceeds the limit of %lld tokens",
                       (long long)p->length, (long long)l->max_tokens);
    kv_timeline_clear(l);
    const int64_t end = num_div_up(p->length, KV_PAGE);
    /* a block of somebody else's may lack what a guest keeps */
    int64_t i = p->length / KV_PAGE, lacks = 0;
    for (const struct node *d = p->node; d->parent; d = d->parent, i--) {
        if (d->from > (i - 1) * KV_PAGE)
            lacks = num_max(lacks, d->from);
        for (uint32_t g = 0, k = 0; g < l->pool->spec->n_groups; g++)
            if (!l->pool->spec->group[g].window)
                kv_timeline_share(l, g, i - 1, d->page[k++]);
    }
    size_t k = 0;
    for (uint32_t g = 0; g < l->pool->spec->n_groups; g++) {
        for (i = point_first(t, g, p->length); i < end; i++)
            kv_timeline_share(l, g, i, p->page[k++]);
        l->table[g].first = kv_timeline_first(l->pool->spec, g, p->length);
        l->table[g].end = end;
    }
    l->length = l->ready = p->length;
    l->from = num_max(p->from, lacks);
    p->hits++;
    point_use(t, p);
    point_revalue(t, p);
    return INGLE_OK;
}
