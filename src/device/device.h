/*
 * device - the table of operations that a forward pass is made of.
 *
 * Above this door nobody knows where memory lives.  Rows are f32, row-major; weights are
 * device objects loaded from stored rows.  Calls are ordered on the device's one stream.
 * The device keeps the first error and later calls do nothing, so a family does not check
 * line by line: device_status() is asked once at the end of a step.
 *
 * Scratch rows come from an arena that is sized before the first step by a dry run: between
 * device_dry_begin() and device_dry_end() operations only count what they would take.
 */
#ifndef INGLE_DEVICE_DEVICE_H
#define INGLE_DEVICE_DEVICE_H

#include "base/err.h"
#include "base/numa.h"
#include "base/pool.h"
#include "base/report.h"
#include "kern/kern.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum device_numerics {
    DEVICE_EXACT,     /* int8 activations against quantised weights: one arithmetic */
    DEVICE_REFERENCE, /* f32 activations against decoded weights, f64 sums: slow */
    /* bf16 products where those are faster; for a prompt's rows also in attention, and bytes of
     * quantised weights; else exact */
    DEVICE_FAST,
};

/* Of a machine with several memory nodes. */
enum device_numa {
    /* rows of a matrix are on, and are computed by, the nodes that have threads */
    DEVICE_NUMA_AUTO,
    DEVICE_NUMA_OFF,        /* memory is where the system puts it */
    DEVICE_NUMA_INTERLEAVE, /* pages turn by turn on all nodes */
};

struct device_options {
    int n_threads;    /* 0: cpu_default_threads() */
    bool pin;
    uint32_t cpu;     /* bundles allowed; ANDed with cpu_detect() */
    enum device_numerics numerics;
    const struct report_sink *sink; /* borrowed */
    enum device_numa numa;
    const struct cpu_topology *topology; /* NULL: this machine's; else for the call */
};

struct device;

MUST_CHECK ingle_status device_create(struct device **out, const struct device_options *o,
                                      struct err *err);
void device_free(struct device *d);
const struct kern_table *device_kernels(const struct device *d);
struct pool *device_pool(struct device *d);
uint64_t device_join_ns(const struct device *d); /* pool_join_ns() at start */
/* Nodes over which memory is spread that all threads use: activations, keys and values. */
const struct numa_nodes *device_nodes(const struct device *d);
enum device_numerics device_numerics(const struct device *d);
/* What the matrices made so far compute with, and what results may be kept under: "exact",
 * "reference", recipes of kern/matmul.h and attend.h such as "fast-panels+fast-wide"; DEVICE_FAST
 * is "exact" as long as neither a matrix nor attention has a faster kernel. */
const char *device_numerics_name(const struct device *d);

/* ---- weights ---- */

/* A stack of n_stack matrices W[out][in] of one stored type (n_stack > 1: experts). */
struct device_matrix;

/* Checks type and shape and computes sizes; takes no memory for the weights yet. */
MUST_CHECK ingle_status device_matrix_create(struct device_matrix **out, struct device *d,
                                             uint32_t type, int64_t out_rows, int64_t in,
                                             int64_t n_stack, struct err *err);
/* The same; activations stay f32, whatever the numerics but the fast ones: of Q8_0, too. */
MUST_CHECK ingle_status device_matrix_create_floats(struct device_matrix **out, struct device *d,
                                                    uint32_t type, int64_t out_rows, int64_t in,
                                                    int64_t n_stack, struct err *err);
void device_matrix_free(struct device_matrix *m);
uint64_t device_matrix_bytes(const struct device_matrix *m);
int64_t device_matrix_out(const struct device_matrix *m);
int64_t device_matrix_in(const struct device_matrix *m);
int64_t device_matrix_stack(const struct device_matrix *m);
uint32_t device_matrix_type(const struct device_matrix *m);
/* Where its weights are, 64-byte aligned, borrowed until it is freed; const if device_matrix_load()
 * is not used. Matrices of a stack begin `step` bytes apart; 0: one follows the other, in all
 * device_matrix_bytes(). */
void device_matrix_place(struct device_matrix *m, void *at, size_t step);
/* Matrices of a stack that come and go: none is there until device_matrix_place_one() says where,
 * and again after it said NULL.  To compute with an absent one is a mistake in the program.
 * Between operations. */
MUST_CHECK ingle_status device_matrix_scatter(struct device_matrix *m, struct err *err);
void device_matrix_place_one(const struct device_matrix *m, int64_t index, void *at);
/* Memory that a device has for itself, beside the host's: bytes of it that such matrices may take;
 * 0: none.  Addresses in it are the device's: nobody else reads or writes there.  take: NULL: it is
 * not to be had.  put and get come between operations. */
uint64_t device_own_bytes(const struct device *d);
void *device_own_take(struct device *d, uint64_t n_bytes);
void device_own_give(struct device *d, void *own, uint64_t n_bytes);
void device_own_put(struct device *d, void *own, const void *host, size_t n_bytes);
void device_own_get(struct device *d, void *host, const void *own, size_t n_bytes);
/* As device_matrix_place_one(), in the device's own memory: the host has it no more. */
void device_matrix_place_own(const struct device_matrix *m, int64_t index, void *own);
/* Its memory is new and the device's alone: with several nodes it is spread over them now; of a
 * stack that is divided that of all parts, given the first. */
void device_matrix_spread(const struct device_matrix *m);
/* Where its pages are, by the system's answer about some of them (more of larger ones), beside
 * where device_matrix_share() wants them.  Adds to *p; nothing where no node is to have rows of its
 * own: --numa off, unbound threads, experts that come and go. */
struct device_placement {
    double bytes, local_bytes; /* of weights; of them where they should be */
    uint64_t pages, unknown;   /* asked about; of them without an answer */
};
void device_matrix_placement(const struct device_matrix *m, struct device_placement *p);
/* Panels [*p0, *p1) of one matrix of the stack belong to a node of the device's pool; none: *p0 =
 * *p1.  Of large matrices and of stacks that are divided each node has rows, of other stacks of
 * small ones whole matrices.  half < device_matrix_halves(): of a divided stack with rows of gate
 * and of up (2) a node has some of either. */
void device_matrix_share(const struct device_matrix *m, int64_t index, int node, int half,
                         int64_t *p0, int64_t *p1);
int device_matrix_halves(const struct device_matrix *m);
/* The stacks of a layer's experts: gate and up, or one with gate's rows before those of up, and
 * down.  Their memory is new and in one piece; instead of expert by expert each node of the pool
 * gets there its rows of all experts, until they are placed again.  False: they stay as they are:
 * there is one node, a node would have no rows, they are a card's, they come and go. */
enum { DEVICE_DIVIDED = 3 };
bool device_matrix_divide(struct device_matrix *const *part, int n_parts, void *at, size_t n_bytes);
/* The same of other matrices that follow one another in new memory, which is spread over the nodes
 * now: a node's rows of all of them are together.  None is to be a card's.  False: there is one
 * node, or no memory for the list of places. */
bool device_matrix_divide_run(struct device_matrix *const *m, size_t n, void *at, size_t n_bytes);
bool device_matrix_is_divided(const struct device_matrix *m);
/* Memory of a node, given the first of stacks that are divided, or a matrix of a run; all begins
 * with that of node 0. */
void device_matrix_region(const struct device_matrix *gate, int node, uint8_t **at,
                          size_t *n_bytes);
/* A matrix of a divided stack as it is stored in one that is not: device_matrix_bytes() / stack. */
void device_matrix_gather(const struct device_matrix *m, int64_t index, void *to);
/* Loads rows [row0, row0 + n) of one matrix of the stack from stored bytes.  row0 is a
 * multiple of KERN_PANEL, and so is n unless the matrix ends there.  Any thread, disjoint
 * rows. */
void device_matrix_load(struct device_matrix *m, int64_t index, int64_t row0, int64_t n,
                        const void *stored);
/* The same of one matrix that is, or is to be, at `to`: of device_matrix_bytes() / stack. */
void device_matrix_pack(const struct device_matrix *m, void *to, int64_t row0, int64_t n,
                        const void *stored);
/* Factor on the products of one matrix of the stack (NVFP4's second scale); 1 if never set. */
MUST_CHECK ingle_status device_matrix_set_scales(struct device_matrix *m, const float *scale,
                                                 struct err *err);

/* A vector of f32, e.g. norm weights. */
struct device_vector;
MUST_CHECK ingle_status device_vector_create(struct device_vector **out, struct device *d,
                                             const float *v, int64_t n, struct err *err);
void device_vector_free(struct device_vector *v);

/* ---- scratch ---- */

struct rows { float *at; int64_t n, width, stride; }; /* f32 [n][stride], width used */

/* From the arena; rows begin on 64-byte borders.  When the arena is spent the device fails
 * and the rows have no memory: later operations do nothing. */
struct rows device_rows(struct device *d, int64_t n, int64_t width);
/* Host memory of the arena; NULL in a dry run and when the arena is spent. */
void *device_bytes(struct device *d, size_t n_bytes);
/* Host code that looks at, or writes to, rows and integers of the arena between operations says so:
 * before it looks (waits for the operations that write there; the host's bytes are right then),
 * and after it wrote.  Both take NULL, and do nothing in a dry run.  Operations take lists of
 * integers from the arena, or from any memory of the host, which they read during the call. */
void device_read(struct device *d, const void *at, size_t n_bytes);
void device_wrote(struct device *d, const void *at, size_t n_bytes);
/* Memory that operations read and write as they do the arena, until it is given back: results that
 * are kept longer than a step.  64-byte aligned, zero; NULL: there is none.  give takes NULL. */
void *device_host_take(struct device *d, size_t n_bytes);
void device_host_give(struct device *d, void *at, size_t n_bytes);
static inline struct rows rows_slice(struct rows r, int64_t first, int64_t n)
{
    return (struct rows){r.at ? r.at + first * r.stride : NULL, n, r.width, r.stride};
}
static inline struct rows rows_columns(struct rows r, int64_t first, int64_t width)
{
    return (struct rows){r.at ? r.at + first : NULL, r.n, width, r.stride};
}
static inline size_t rows_bytes(struct rows r) /* from its first float to its last */
{
    return r.at && r.n > 0 ? (size_t)((r.n - 1) * r.stride + r.width) * sizeof(float) : 0;
}
static inline void device_read_rows(struct device *d, struct rows r)
{
    device_read(d, r.at, rows_bytes(r));
}
static inline void device_wrote_rows(struct device *d, struct rows r)
{
    device_wrote(d, r.at, rows_bytes(r));
}
size_t device_mark(const struct device *d);
void device_release(struct device *d, size_t mark);

void device_dry_begin(struct device *d);
size_t device_dry_end(struct device *d); /* bytes that the dry step needed at most */
MUST_CHECK ingle_status device_arena_reserve(struct device *d, size_t n_bytes, struct err *err);
size_t device_arena_bytes(const struct device *d); /* that are reserved */
/* Of the last dry run: bytes at the arena's beginning that operations leave for each other.  A step
 * writes to all of them; of what operations have for themselves after them, many use a small
 * part. */
size_t device_dry_held(const struct device *d);
/* For idle times, between steps: has the system fill the next pages of the first n_bytes of the
 * arena, one of 2 MiB a thread.  The first large step would wait for them, on a machine whose host
 * gives memory when it is touched for hundreds of milliseconds.  False: all are there. */
bool device_arena_fill(struct device *d, size_t n_bytes);

/* Starts a step: the arena is empty, errors are forgotten.  cancel (may be NULL) is polled
 * between operations. */
void device_begin(struct device *d, const atomic_bool *cancel);
/* The step's, for what waits between operations; may be NULL. */
const atomic_bool *device_cancel(const struct device *d);
/* Until the next step: of products of n_rows rows without a list, the last n_prompt ones are a
 * prompt's, for which fast numerics have kernels of their own. */
void device_prompt_rows(struct device *d, int64_t n_rows, int64_t n_prompt);
int64_t device_step_prompt(const struct device *d); /* that n_prompt; 0: none was said */
/* False in a dry run, after an error and after a cancel: host code between operations asks
 * before it touches memory. */
bool device_runs(struct device *d);

/* Another step between the pieces of one: while such a thing is set, fn is called after every
 * operation, and within one about every piece_ns (never while a kernel runs; 0: operations are
 * whole, and not timed).  There, between device_suspend() and device_resume(), another forward
 * pass may run; its scratch is after that of the first. */
enum { DEVICE_LONGEST = 8 };
struct device_between {
    void (*fn)(void *arg);
    void *arg;
    uint64_t piece_ns;
    uint64_t next_ns;    /* result: how long until the next call, 0: not known */
    uint64_t longest_ns[DEVICE_LONGEST]; /* result: the longest times between two calls, falling */
    uint64_t last;       /* clock_now() when the last call returned */
};
/* between is borrowed until the next call; NULL: nothing any more. */
void device_set_between(struct device *d, struct device_between *between);
/* device_set_stage() */
enum device_stage { DEVICE_STAGE_STEP, DEVICE_STAGE_DRAFT, DEVICE_STAGE_OBSERVE, DEVICE_STAGES };
struct device_suspended {
    size_t base, used;
    int64_t step_rows, prompt_rows;
    struct err err;
    const atomic_bool *cancel;
    struct device_between *between;
    enum device_stage stage;
};
void device_suspend(struct device *d, struct device_suspended *s);
void device_resume(struct device *d, const struct device_suspended *s);

MUST_CHECK ingle_status device_status(const struct device *d, struct err *err);
void device_fail(struct device *d, const struct err *err); /* keeps the first */

/* Time spent per operation since device_profile(d, true), for `bench --profile`; jobs that threads
 * shared; launches on a card, which is waited for; and, of those that have much, bytes of weights,
 * keys and values, and multiplications and additions. */
struct device_profile { const char *op; uint64_t calls, ns, joins, launches; double bytes, ops; };
void device_profile(struct device *d, bool on);
/* What operations from now on belong to; those of a drafter have names of their own: "draft
 * matmul", "observe matmul". Returns what it was before. */
enum device_stage device_set_stage(struct device *d, enum device_stage stage);
int device_profile_read(const struct device *d, struct device_profile *out, int n_max);

/* ---- operations ---- */

/* y[i] = row tokens[i] of the matrix (decoded) * scale. */
void device_embed(struct device *d, struct rows y, const struct device_matrix *m,
                  const int32_t *tokens, float scale);

/* Host rows into device rows: y[i] = src + i * src_stride. */
void device_write(struct device *d, struct rows y, const float *src, int64_t src_stride);
void device_copy(struct device *d, struct rows y, struct rows x);
/* y[i] = x[row[i]], i < y.n; y is not x. */
void device_gather(struct device *d, struct rows y, struct rows x, const int32_t *row);

/* Each row is n_heads groups of width / n_heads: y = x / rms(x) * w per group (w: of one
 * group's width, or NULL).  y may be x. */
void device_norm(struct device *d, struct rows y, struct rows x, const struct device_vector *w,
                 int64_t n_heads, float eps);

/* x = (x + norm(y) * w) * scale: the end of a block with a norm after it.  y is spent. */
void device_add_norm(struct device *d, struct rows x, struct rows y,
                     const struct device_vector *w, float eps, float scale);

void device_add(struct device *d, struct rows x, struct rows y); /* x += y */
void device_scale(struct device *d, struct rows y, struct rows x, float s);
void device_mul(struct device *d, struct rows y, struct rows x); /* y *= x */
void device_mul_vector(struct device *d, struct rows y, const struct device_vector *w);

enum device_glu { DEVICE_GELU, DEVICE_SILU };
/* y = act(gate) * up; y may be gate.  limit > 0: gate is capped at limit from above and up
 * at +-limit first (both are changed). */
void device_glu(struct device *d, enum device_glu act, float limit, struct rows y,
                struct rows gate, struct rows up);

void device_softcap(struct device *d, struct rows y, float cap);
void device_softmax(struct device *d, struct rows y);
void device_sqrt_softplus(struct device *d, struct rows y); /* y = sqrt(log(1 + exp(y))) */

/* Rotations for rows at positions pos[i] (host): cs [n][n_pairs][2], from the arena. */
struct device_rope { struct rows cs; int64_t n_pairs; };
struct device_rope device_rope_table(struct device *d, const int64_t *pos, int64_t n,
                                     const double *inv_freq, int64_t n_pairs);
/* Rotates pairs (i, i + half), i < n_pairs, of each of n_heads groups of x's rows. */
void device_rope(struct device *d, struct rows x, const struct device_rope *r, int64_t n_heads,
                 int64_t half);
/* Rotates neighbours (first + 2i, first + 2i + 1) of each group: a' = a c - b s, b' = b c +
 * a s, every product and sum rounded; inverse: by the negative angle. */
void device_rope_pairs(struct device *d, struct rows x, const struct device_rope *r,
                       int64_t n_heads, int64_t first, bool inverse);

/* One product of a list: y[i] = W x[row ? row[i] : i], i < y.n. */
struct device_product {
    const struct device_matrix *w;
    int64_t index;      /* which matrix of the stack */
    struct rows x, y;   /* y.width == out rows of w */
    const int32_t *row; /* host, or NULL */
};
/* All products as one list of tasks.  Products that read the same x share its preparation. */
void device_matmul(struct device *d, const struct device_product *p, int64_t n);
/* Of one product these columns of y alone, the others stay as they are.  Ascending; `first` and `n`
 * are multiples of DEVICE_COLUMNS, but where y ends. */
enum { DEVICE_COLUMNS = KERN_PANEL * KERN_BAND };
struct device_columns { int64_t first, n; };
void device_matmul_columns(struct device *d, const struct device_product *p,
                           const struct device_columns *only, int64_t n_only);

/* Gated products and the way back, y = down (act(gate x) * up x): the bits of device_matmul(),
 * device_glu() and device_matmul().  Of stacks y[i] with first[e] <= i < first[e + 1] is of matrix
 * e and of x[row[i]]; of single matrices y[i] is of x[i]. */
struct device_mlp {
    /* up NULL: gate's rows are followed by those of up */
    const struct device_matrix *gate, *up, *down;
    enum device_glu act;
    float limit;
    const int32_t *first, *row; /* host: [n_stack + 1], [y.n]; or NULL */
    /* host: [n_stack]: matrices with 0 are left out, and their rows of y; NULL: none is */
    const uint8_t *only;
};
void device_mlp(struct device *d, const struct device_mlp *m, struct rows x, struct rows y);
/* The same of two blocks, none of which reads what the other writes: on a processor in the same
 * jobs. */
struct device_mlp_call { const struct device_mlp *m; struct rows x, y; };
void device_mlp_both(struct device *d, const struct device_mlp_call *a,
                     const struct device_mlp_call *b);

/* Shows what matrices are multiplied with: rows x[row ? row[i] : i], i < n, of matrix `index` of
 * w's stack, before the product. Set before arenas are planned: products are then computed one
 * after the other, with the same bits.  fn runs on the thread of the operation; NULL: no longer. */
struct device_watched {
    const struct device_matrix *w;
    int64_t index;
    struct rows x;
    const int32_t *row; /* host, or NULL */
    int64_t n;
};
typedef void device_watch_fn(void *arg, const struct device_watched *v);
void device_set_watch(struct device *d, device_watch_fn *fn, void *arg);

/* The rows [row0, row0 + n) of a batch that are positions pos0.. of one timeline. */
struct device_kv;
struct device_span {
    int64_t row0, n, pos0;
    uint8_t *const *page; /* of the stream's group, by position / 128 */
    bool prompt; /* with fast numerics: attention may have kernels of its own for it */
    /* of attention: of these rows, at most the operation's where that has one; 0: the
     * operation's */
    int64_t window;
    /* of attention without a window, of a prompt's rows: how; NULL: to all that a row sees */
    const struct kern_sparse *sparse;
    struct kern_sparse_seen *seen;  /* host: what that did is added; NULL: nobody asks */
    const int32_t *first; /* host, [n]: of attention with a window: as in kern/attend.h */
    int64_t through;      /* of attention: as in kern/attend.h */
};
/* NULL: the device attends to few positions of such keys and values; else why it takes all ("heads
 * of width 96 ..."). */
const char *device_sparse_refuses(const struct device *d, const struct device_kv *kv);
struct device_kv {
    enum kern_kv_codec k_codec, v_codec;
    int64_t n_heads, k_width, v_width;
    size_t at, head_bytes, v_at; /* in a page, as in kv.h */
    const struct kern_from_v *from_v; /* k_codec FROM_V, Q8R_ROT or N4R_ROT */
};
/* k: [n][n_heads * k_width], v: [n][n_heads * v_width]. */
void device_kv_append(struct device *d, const struct device_kv *kv,
                      const struct device_span *span, int64_t n_spans, struct rows k,
                      struct rows v);
/* q: [n][n_q_heads * k_width]; out: [n][n_q_heads * v_width]; query head j reads key/value
 * head j / (n_q_heads / n_heads).  window and scale as in kern/attend.h. */
void device_attend(struct device *d, const struct device_kv *kv, const struct device_span *span,
                   int64_t n_spans, struct rows q, int64_t n_q_heads, struct rows out,
                   int64_t window, float scale);

/* How much the rows of a span attend to each position: best [span.n][stride] (host) becomes the
 * larger of what it is and of the weights (softmax of scale * (q . k)) of each query head of q.
 * room: host, as large as best.  Keys are decoded. */
void device_probe(struct device *d, const struct device_kv *kv, const struct device_span *span,
                  struct rows q, int64_t n_q_heads, float scale, float *best, float *room,
                  int64_t stride);

/* ---- attention to chosen pages (kern/select.h) ---- */

/* Where shadow keys of a stream are in a page, and the means after them. */
struct device_shadow {
    size_t at, head_bytes, mean_at;
};
/* NULL: the device chooses pages of such keys and values; else why it takes all. */
const char *device_select_refuses(const struct device *d, const struct device_kv *kv);
/* After device_kv_append(): k as shadow keys into the pages of span; the means of pages that are
 * full then, of the values in those of own. */
void device_shadow_append(struct device *d, const struct device_shadow *shadow,
                          const struct device_kv *kv, const struct device_span *span,
                          const struct device_span *own, int64_t n_spans, struct rows k);

/* A row that attends to chosen pages. */
struct device_select_row {
    int64_t row, pos;            /* row: of q and out */
    uint8_t *const *shadow;      /* pages of shadow keys, by position / 128 */
    const uint8_t *whole;        /* host, [pages]: as in kern/select.h; or NULL */
    /* of device_attend_selected(): those of keys and values that it looks at */
    uint8_t *const *page;
    struct kern_select_seen *seen; /* host: what that did is added; NULL: nobody asks */
};
enum { DEVICE_SELECT_ROWS = 8 }; /* at a time */
struct device_page_select {
    const struct kern_select *rule;
    struct device_shadow shadow;
    int64_t n_heads, k_width, v_width; /* of keys and values */
    const struct device_select_row *row; /* host: [n_rows]; NULL: a dry run */
    int64_t n_rows, last;              /* last: the largest position of a dry run */
    int64_t most;                      /* the largest budget of a row */
    /* host: [n_rows][n_heads][most]; a row has as many as its budget is */
    int32_t *chosen;
    /* host: [n_rows][n_heads][query heads of one][kern_attend_state()] */
    float *rest;
};
/* Chooses: fills chosen and rest. */
void device_select_pages(struct device *d, const struct device_page_select *p, struct rows q,
                         int64_t n_q_heads, float scale);
/* Attention of the rows to what was chosen; kv, q and out: of kv->n_heads key/value heads from
 * `head` on. */
void device_attend_selected(struct device *d, const struct device_kv *kv,
                          const struct device_page_select *p, int64_t head, struct rows q,
                          int64_t n_q_heads, struct rows out, float scale);

/* Which matrices of a stack each row uses.  Of each row of scores + bias the k largest, ties: the
 * lower index; or what the table says for the row's token.  Ids ascend within a row; weight = the
 * score without the bias. */
enum { DEVICE_ROUTE_MOST = 64 }; /* the largest k */
struct device_route {
    const struct device_vector *bias; /* [scores.width], or NULL */
    const int32_t *table;             /* host: [n_tokens][k], or NULL */
    const int32_t *tokens;            /* [n_rows], with a table */
    int64_t k;
    bool normalise;                   /* weights are divided by their sum, added ascending */
    const struct device_vector *factor; /* [scores.width]: then times that of the id; or NULL */
    float scale;                      /* then times this */
    bool pairs;                       /* whether pairs are wanted, too */
    /* host: [scores.width]: + rows that use each, when the step is over at the latest; or NULL;
     * only with pairs */
    uint64_t *hits;
};
/* Of the arena.  A pair is a row and one of its ids; sorted by id: those of e are
 * [first[e], first[e + 1]). */
struct device_routed {
    int32_t *id;    /* [n_rows][k] */
    float *weight;  /* [n_rows][k] */
    int64_t k;
    int32_t *first; /* [scores.width + 2]; the last one: as the one before; or NULL: no pairs */
    int32_t *row;   /* [n_rows * k]: the pair's row */
    int32_t *slot;  /* [n_rows * k]: the pair of a row's i-th id */
};
struct device_routed device_route(struct device *d, const struct device_route *r,
                                  struct rows scores);

/* out[r] = sum over i < k, ascending, of weight[r * k + i] * y[slot[r * k + i]]: f32 fma
 * from zero. */
void device_weighted_sum(struct device *d, struct rows out, struct rows y, const int32_t *slot,
                         const float *weight, int64_t k);

/* ---- hyper-connections: n residual streams side by side, x [n_rows][n * width] ---- */

struct device_hc {
    int64_t n;                          /* streams, at most 8 */
    /* [3] and [n + n + n * n]; the head: [1] and [n] */
    const struct device_vector *scale, *base;
    int iterations;                     /* of Sinkhorn's normalisation */
    float eps, norm_eps;
};
/* mix = fn . x (before its norm), [n_rows][2n + n * n], or [n] for the head.  Writes out =
 * sum_j pre[j] stream[j], and gates [n_rows][n + n * n] = post, M (gates.at NULL: head). */
void device_hc_pre(struct device *d, const struct device_hc *hc, struct rows x, struct rows mix,
                   struct rows out, struct rows gates);
/* y[k] = post[k] out + sum_j M[j][k] x[j]; y is not x. */
void device_hc_post(struct device *d, const struct device_hc *hc, struct rows x, struct rows out,
                    struct rows gates, struct rows y);

/* ---- rows in pages: one every `every` positions ---- */

struct device_stream {
    enum kern_kv_codec codec;
    int64_t width, tail, every; /* tail: see kern/row.h */
    size_t at;                  /* in a page */
};
/* Rows of a batch into a stream with every == 1. */
void device_rows_append(struct device *d, const struct device_stream *s,
                        const struct device_span *span, int64_t n_spans, struct rows x);
/* And back: rows of positions before 0, or whose page is not there, are zeros. */
void device_rows_read(struct device *d, const struct device_stream *s,
                      const struct device_span *span, int64_t n_spans, struct rows y);

/* Pools blocks of `ratio` positions into one row, per dimension: softmax over the gates,
 * weighted sum of the values, members by ascending position (kern/latent.h, pool); then norm
 * and rotation at the block's first position.  in: rows [values][gates], stored as f32;
 * overlap: both twice as wide, the first halves serve the next block and the second halves
 * their own; positions before 0 are no members.  Every block that the spans complete is written. */
struct device_compress {
    struct device_stream in, out;
    int64_t ratio;
    bool overlap;
    const struct device_vector *norm; /* [out.width] */
    float eps;
    const double *inv_freq;           /* [n_pairs]: the last 2 n_pairs of a row are rotated */
    int64_t n_pairs;
    bool hadamard;                    /* then kern_row_hadamard() */
    struct rows step; /* what `in` has for the spans' own positions: [row][in.width]; pages of
                       * `in` may lack them.  at NULL: pages have everything */
};
void device_compress(struct device *d, const struct device_compress *c,
                     const struct device_span *in, const struct device_span *out,
                     int64_t n_spans);

/* Each head of each row becomes kern_row_hadamard() of itself: queries for rows kept so. */
void device_hadamard(struct device *d, struct rows x, int64_t n_heads);

/* For each row at position t: the top_k rows w < (t + 1) / every of keys by score(w) = sum
 * over heads h of weight[h] * max(0, q[h] . key[w]), in the order of kern/latent.h, scores;
 * listed ascending.  Ties: the lower w.  sel:
 * host [n][top_k], count: host [n]. */
struct device_select {
    struct device_stream keys;
    int64_t n_heads, top_k;
};
void device_select(struct device *d, const struct device_select *s,
                   const struct device_span *span, int64_t n_spans, struct rows q,
                   struct rows weight, int32_t *sel, int32_t *count);

/* Attention where keys are values: a row at t sees the rows (t - window, t] of `near`, then of
 * `far` (stored as near is) those listed in sel/count, which are what device_select gave, or all w
 * < (t + 1) / every if top_k is 0, then a sink per head (a score without a value, [n_heads] or
 * NULL).  far.width 0: none. */
struct device_latent {
    struct device_stream near, far;
    int64_t window;
    const struct device_vector *sink;
    const int32_t *sel, *count;
    int64_t top_k;
};
void device_attend_latent(struct device *d, const struct device_latent *a,
                          const struct device_span *near, const struct device_span *far,
                          int64_t n_spans, struct rows q, int64_t n_heads, struct rows out,
                          float scale);

/* ---- encoders: all rows see all rows ---- */

/* y = x within [least, most]; y may be x. */
void device_clamp(struct device *d, struct rows y, struct rows x, float least, float most);
/* y = (x - mean) / sqrt(variance + eps) * w + b of each row; b may be NULL; sums are f64; y may be
 * x. */
void device_layer_norm(struct device *d, struct rows y, struct rows x,
                       const struct device_vector *w, const struct device_vector *b, float eps);

/* Keys and values of n rows, n_heads heads of `width`, in the layout of weights: a head's rows in
 * tiles of DEVICE_DENSE_TILE, each a matrix of keys and one of values (transposed). */
enum { DEVICE_DENSE_TILE = 256 };
struct device_dense {
    int64_t n, n_heads, width;
    uint8_t *at; /* from the arena */
    size_t k_bytes, v_bytes; /* of a whole tile of a head */
};
struct device_dense device_dense_make(struct device *d, int64_t n, int64_t n_heads, int64_t width);
/* Rows [row0, row0 + k.n): row0 is a multiple of DEVICE_DENSE_TILE; so is k.n, but at the end. */
void device_dense_put(struct device *d, const struct device_dense *to, int64_t row0, struct rows k,
                      struct rows v);
/* out = softmax(q . k) v for each head, over all rows: tiles in ascending order, each with its own
 * softmax and a product with the values, joined as the parts of kern/attend.h are.  No scale. */
void device_dense_attend(struct device *d, const struct device_dense *kv, struct rows q,
                         struct rows out);

/* Host code over rows, on memory that is the host's: fn(k, arg, row) for each row < n, on any
 * thread.  work: floats that a row touches, roughly. */
typedef void device_each_fn(const struct kern_table *k, void *arg, int64_t row);
void device_each(struct device *d, int64_t n, int64_t work, device_each_fn *fn, void *arg);

/* First row and column that is NaN or infinite; false: none.  Waits. */
bool device_find_bad(struct device *d, struct rows x, int64_t *row, int64_t *column);

#endif
