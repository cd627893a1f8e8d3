/*
 * ops - inside the room: what a device implements.
 *
 * One function an operation, each with a plain struct of arguments, so that another device
 * can fill the same table and refuse an operation by number.
 */
#ifndef INGLE_DEVICE_OPS_H
#define INGLE_DEVICE_OPS_H

#include "device/card.h"
#include "device/device.h"
#include "kern/touch.h"
#include <stdatomic.h>

#define DEVICE_OP_LIST(X)                                                                  \
    X(embed) X(write) X(copy) X(norm) X(add_norm) X(add) X(scale) X(mul) X(mul_vector)     \
    X(glu) X(softcap) X(softmax) X(sqrt_softplus) X(rope_table) X(rope) X(rope_pairs)      \
    X(matmul) X(kv_append) X(attend) X(weighted_sum) X(hc_pre) X(hc_post) X(rows_append)   \
    X(compress) X(select) X(attend_latent) X(hadamard) X(mlp) X(rows_read)       \
    X(shadow_append) X(select_pages) X(attend_selected) X(probe) X(clamp) X(layer_norm)    \
    X(dense_put) X(dense_attend) X(each) X(route) X(gather)

enum device_op {
#define X(name) DEVICE_OP_##name,
    DEVICE_OP_LIST(X)
#undef X
    DEVICE_OPS
};

struct device_embed_args {
    struct rows y;
    const struct device_matrix *m;
    const int32_t *tokens;
    float scale;
};
struct device_write_args { struct rows y; const float *src; int64_t src_stride; };
struct device_copy_args { struct rows y, x; };
struct device_gather_args { struct rows y, x; const int32_t *row; };
struct device_route_args {
    const struct device_route *route;
    struct rows scores;
    struct device_routed out;
};
struct device_norm_args {
    struct rows y, x;
    const struct device_vector *w;
    int64_t n_heads;
    float eps;
};
struct device_add_norm_args { struct rows x, y; const struct device_vector *w; float eps, scale; };
struct device_add_args { struct rows x, y; };
struct device_scale_args { struct rows y, x; float s; };
struct device_mul_args { struct rows y, x; };
struct device_mul_vector_args { struct rows y; const struct device_vector *w; };
struct device_glu_args { enum device_glu act; float limit; struct rows y, gate, up; };
struct device_softcap_args { struct rows y; float cap; };
struct device_softmax_args { struct rows y; };
struct device_sqrt_softplus_args { struct rows y; };
struct device_rope_pairs_args {
    struct rows x;
    const struct device_rope *r;
    int64_t n_heads, first;
    bool inverse;
};
struct device_hc_pre_args { const struct device_hc *hc; struct rows x, mix, out, gates; };
struct device_hc_post_args { const struct device_hc *hc; struct rows x, out, gates, y; };
struct device_rows_append_args {
    const struct device_stream *s;
    const struct device_span *span;
    int64_t n_spans;
    struct rows x;
};
struct device_rows_read_args {
    const struct device_stream *s;
    const struct device_span *span;
    int64_t n_spans;
    struct rows y;
};
struct device_compress_args {
    const struct device_compress *c;
    const struct device_span *in, *out;
    int64_t n_spans;
};
struct device_select_args {
    const struct device_select *s;
    const struct device_span *span;
    int64_t n_spans;
    struct rows q, weight;
    int32_t *sel, *count;
};
struct device_attend_latent_args {
    const struct device_latent *a;
    const struct device_span *near, *far;
    int64_t n_spans;
    struct rows q;
    int64_t n_heads;
    struct rows out;
    float scale;
};
struct device_hadamard_args { struct rows x; int64_t n_heads; };
struct device_rope_table_args {
    struct rows cs;
    const int64_t *pos;
    const double *inv_freq;
    int64_t n_pairs;
};
struct device_rope_args { struct rows x; const struct device_rope *r; int64_t n_heads, half; };
struct device_matmul_args {
    const struct device_product *p;
    int64_t n;
    const struct device_columns *only;
    int64_t n_only;
};
/* beside: another block in the same jobs, or NULL; only of the device that is the processor's. */
struct device_mlp_args {
    const struct device_mlp *m;
    struct rows x, y;
    const struct device_mlp_call *beside;
};
struct device_kv_append_args {
    const struct device_kv *kv;
    const struct device_span *span;
    int64_t n_spans;
    struct rows k, v;
};
struct device_attend_args {
    const struct device_kv *kv;
    const struct device_span *span;
    int64_t n_spans;
    struct rows q;
    int64_t n_q_heads;
    struct rows out;
    int64_t window;
    float scale;
};
struct device_probe_args {
    const struct device_kv *kv;
    const struct device_span *span;
    struct rows q;
    int64_t n_q_heads;
    float scale;
    float *best, *room;
    int64_t stride;
};
struct device_shadow_append_args {
    const struct device_shadow *shadow;
    const struct device_kv *kv;
    const struct device_span *span, *own;
    int64_t n_spans;
    struct rows k;
};
struct device_select_pages_args {
    const struct device_page_select *select;
    struct rows q;
    int64_t n_q_heads;
    float scale;
};
struct device_attend_selected_args {
    const struct device_kv *kv;
    const struct device_page_select *select;
    int64_t head;
    struct rows q;
    int64_t n_q_heads;
    struct rows out;
    float scale;
};
struct device_clamp_args { struct rows y, x; float least, most; };
struct device_layer_norm_args {
    struct rows y, x;
    const struct device_vector *w, *b;
    float eps;
};
struct device_dense_put_args {
    const struct device_dense *to;
    int64_t row0;
    struct rows k, v;
};
struct device_dense_attend_args { const struct device_dense *kv; struct rows q, out; };
struct device_each_args { int64_t n, work; device_each_fn *fn; void *arg; };
struct device_weighted_sum_args {
    struct rows out, y;
    const int32_t *slot;
    const float *weight;
    int64_t k;
};

/* What an operation must move and compute, whoever does it. */
struct device_cost { double bytes, ops; };

/* Of a device that has memory for itself; its products know which matrices lie there
 * (device_matrix.own). */
struct device_own_ops {
    uint64_t (*bytes)(const struct device *d);
    void *(*take)(struct device *d, size_t n_bytes);
    void (*give)(struct device *d, void *own, size_t n_bytes);
    void (*put)(struct device *d, void *own, const void *host, size_t n_bytes);
    void (*get)(struct device *d, void *host, const void *own, size_t n_bytes);
    void (*copy)(struct device *d, void *to, const void *from, size_t n_bytes);
};

struct device_ops {
    const char *name;
    /* Bytes of arena that an operation needs while it runs (at most, in a dry run). */
    size_t (*scratch)(const struct device *d, enum device_op op, const void *args);
    void (*run[DEVICE_OPS])(struct device *d, const void *args, void *scratch);
    /* device_read(), device_wrote(), device_host_take() and device_host_give(); NULL: the arena is
     * the host's only. */
    void (*read)(struct device *d, const void *at, size_t n_bytes);
    void (*wrote)(struct device *d, const void *at, size_t n_bytes);
    void *(*host_take)(struct device *d, size_t n_bytes);
    void (*host_give)(struct device *d, void *at, size_t n_bytes);
    /* The arena: reserved, a piece of it begins, pieces from mark on end; NULL as above. */
    ingle_status (*arena)(struct device *d, size_t n_bytes, struct err *err);
    void (*took)(struct device *d, size_t at, size_t n_bytes);
    void (*released)(struct device *d, size_t mark);
    void (*resumed)(struct device *d); /* after device_resume() */
    /* For the profile: weights or keys and values read from memory; zeros where it is too little
     * to count. */
    struct device_cost (*cost)(const struct device *d, enum device_op op, const void *args);
    /* For the profile: kernels that were launched, all of which have ended; NULL: it has none. */
    uint64_t (*launches)(struct device *d);
    const struct device_own_ops *own; /* NULL: it has the host's memory only */
};

/* Panels [p0, p1) of each matrix of what is divided, which a node has: those of matrix i
 * begin at `at` + i * step. */
struct device_piece {
    int64_t p0, p1;
    uint8_t *at;
    size_t step;
};

struct device_matrix {
    struct device *d;
    struct kern_matrix m; /* of the first of the stack; at follows in steps of stack_step */
    int64_t n_stack;
    size_t stack_bytes;   /* of one matrix of the stack ... */
    size_t stack_step;    /* ... and from its beginning to that of the next */
    uint8_t **each; /* [n_stack]: where each one lies, NULL for absent ones; or NULL */
    uint8_t **own;  /* the same in the device's own memory, if it has some */
    struct device_piece *piece; /* [nodes][n_halves], of what is divided; or NULL */
    int n_halves;               /* 2: rows of gate and then of up, each of which is divided */
    float *scale;         /* [n_stack] or NULL */
    enum device_side wanted;
    uint8_t *card;        /* the whole stack on the card, or NULL */
    float *card_scale;    /* the same of scale */
    bool away;            /* the host's memory of it has no contents: home() brings them */
    device_home_fn *home;
    void *home_arg;
};

/* Where one matrix of the stack lies, of one that is not divided. */
static inline uint8_t *device_matrix_at(const struct device_matrix *m, int64_t index)
{
    return m->each ? m->each[index] : m->m.at + (size_t)index * m->stack_step;
}

/* The same for those panels that device_matrix_share() says: panel p lies p * panel_bytes behind
 * it.  NULL: the matrix is absent. */
uint8_t *device_matrix_base(const struct device_matrix *m, int64_t index, int node, int half);
/* The same for the panels from p on, up to *end. */
uint8_t *device_matrix_panels(const struct device_matrix *m, int64_t index, int64_t p,
                              int64_t *end);
/* device_matrix_load() of a stack that is divided. */
void device_matrix_load_divided(const struct device_matrix *m, int64_t index, int64_t row0,
                                int64_t n, const void *stored);

struct device_vector {
    struct device *d;
    int64_t n;
    float *at;
    float *card; /* a copy there, or NULL */
    enum device_side side; /* of the layer that it is of */
};

struct device_gpu;

/* Memory of each node of the pool for copies of what its threads read. */
struct device_near_area {
    uint8_t *at; /* [nodes][n_bytes], or NULL: there are none */
    size_t n_bytes, used, wanted;
    uint64_t number; /* of the operation */
    size_t n_blocks; /* that it has */
};

struct device {
    const struct device_ops *ops;
    struct device_gpu *gpu; /* of a device on a card (gpu/card.h), or NULL */
    enum device_side side;  /* device_set_side() */
    struct kern_table kern;
    struct pool *pool;
    int n_resting; /* threads of it, as the owner was told */
    struct numa_nodes nodes; /* that memory is spread over */
    bool placed; /* each node of the pool is to have rows of its own */
    int64_t small_work;      /* device_cpu_for() */
    uint64_t join_ns;
    enum device_numerics numerics;
    char recipes[48]; /* of fast numerics that attention and matrices have, with + between them */
    const struct report_sink *sink;
    /* The arena of the step. */
    uint8_t *arena;
    size_t cap, used, peak;
    size_t held;   /* the most that was used between operations of a dry run */
    size_t filled; /* from its beginning on: by device_arena_fill() */
    size_t base; /* what a suspended step has */
    struct device_near_area near;
    int64_t step_rows, prompt_rows; /* device_prompt_rows() */
    bool dry;
    /* The step that runs. */
    struct err err;           /* status INGLE_OK: none yet */
    const atomic_bool *cancel;
    struct device_between *between; /* or NULL */
    device_watch_fn *watch;         /* or NULL */
    void *watch_arg;
    /* Profile. */
    bool profiled;
    enum device_stage stage;
    uint64_t op_ns[DEVICE_STAGES][DEVICE_OPS], op_calls[DEVICE_STAGES][DEVICE_OPS];
    uint64_t op_joins[DEVICE_STAGES][DEVICE_OPS], op_launches[DEVICE_STAGES][DEVICE_OPS];
    struct device_cost op_cost[DEVICE_STAGES][DEVICE_OPS];
};

extern const struct device_ops device_cpu_ops;
/* Bytes of codes that an operation may write, which threads of all nodes read. */
size_t device_cpu_codes(const struct device *d, enum device_op op, const void *args);

/* gpu/gpu.c */
void device_gpu_close(struct device *d);
/* gpu/weight.c */
void device_gpu_matrix_release(struct device_matrix *m);
void device_gpu_vector_open(struct device_vector *v);
void device_gpu_vector_release(struct device_vector *v);

/* A recipe of fast numerics is used. */
void device_note_recipe(struct device *d, const char *recipe);

/* watch.c: of a device that is watched. */
void device_watch_products(struct device *d, const struct device_product *p, int64_t n);
void device_watch_mlp(struct device *d, const struct device_mlp *m, struct rows x, struct rows y);

/* The other step, if there may be one now; it may again after next_ns, 0: not known. */
void device_may_stop(struct device *d, uint64_t next_ns);
/* Whether operations are to stop in between. */
static inline bool device_in_pieces(const struct device *d)
{
    return d->between && d->between->piece_ns;
}

/* Floats: below this a wake-up of the pool costs more than it gains.  Where a join costs more than
 * a thread needs for so many, it is what a thread does in that time, up to MOST. */
enum { DEVICE_SMALL_WORK = 16384, DEVICE_MOST_SMALL_WORK = 16 * DEVICE_SMALL_WORK };
/* Runs fn over n_chunks: inline when the work (in floats touched, roughly) is at most
 * d->small_work. */
void device_cpu_for(struct device *d, int64_t n_chunks, int64_t work, pool_fn *fn, void *arg);
/* The same with chunks that have places: those of memory node k are [from[k], from[k] + n[k]). */
struct device_share { int64_t from[CPU_NODES_MAX], n[CPU_NODES_MAX]; };
void device_cpu_for_placed(struct device *d, const struct device_share *s, int64_t work,
                           pool_fn *fn, void *arg);
/* Which of n tasks has a chunk: the last one whose first chunk does not come after it.  first: that
 * of task 0; those of the others follow `step` bytes apart. */
int64_t device_task_of(const int64_t *first, size_t step, int64_t n, int64_t chunk);

/* near.c: a block that threads of all nodes read, written by those of node `home`, or by all (-1).
 * from NULL: there is none. */
struct device_near {
    const uint8_t *from;
    size_t n_bytes;
    int home;
    size_t state, at; /* in the memory of a node: which line, and where the copy is */
    uint64_t number;
};
/* Blocks of the last operation are over. */
void device_near_begin(struct device *d);
/* Without a block where there is one node, or no room. */
struct device_near device_near_add(struct device *d, const uint8_t *from, size_t n_bytes, int home);
static inline bool device_near_has(const struct device_near *b, const uint8_t *at)
{
    return at >= b->from && at < b->from + b->n_bytes;
}
/* Where a worker reads what is at `at` of the block; within a job. */
const uint8_t *device_near_read(const struct device *d, const struct device_near *b,
                                const uint8_t *at, int worker);
/* By a dry run: an operation may have blocks of so many bytes in all, each rounded up to 64. */
void device_near_want(struct device *d, size_t n_bytes);
/* On all nodes. */
size_t device_near_bytes(const struct device *d);
MUST_CHECK ingle_status device_near_reserve(struct device *d, struct err *err);
void device_near_release(struct device *d);

void device_cpu_matmul(struct device *d, const void *args, void *scratch);
struct device_cost device_cpu_matmul_cost(const struct device_matmul_args *a);
size_t device_cpu_matmul_scratch(const struct device *d, const struct device_matmul_args *a);
size_t device_cpu_matmul_codes(const struct device *d, const struct device_matmul_args *a);
/* y = act(gate) * up of n floats, as device_glu() has it; y may be gate. */
void device_cpu_gate(const struct kern_math_table *k, enum device_glu act, float limit, float *y,
                     float *gate, float *up, int64_t n);
void device_cpu_mlp(struct device *d, const void *args, void *scratch);
struct device_cost device_cpu_mlp_cost(const struct device_mlp_args *a);
size_t device_cpu_mlp_scratch(const struct device *d, const struct device_mlp_args *a);
size_t device_cpu_mlp_codes(const struct device *d, const struct device_mlp_args *a);
/* The kernels of attention for rows that are a prompt's, or for others. */
const struct kern_attend_table *device_cpu_attend_kernels(const struct device *d, bool prompt);
void device_cpu_kv_append(struct device *d, const void *args, void *scratch);
void device_cpu_attend(struct device *d, const void *args, void *scratch);
/* Rows [row, row + n) of a span. */
static inline struct device_span device_span_part(const struct device_span *s, int64_t row,
                                                  int64_t n)
{
    struct device_span part = *s;
    part.row0 += row;
    part.pos0 += row;
    part.first = s->first ? s->first + row : NULL;
    part.n = n;
    return part;
}
/* The last rows of a span that attend to few positions, and what they need and do. */
int64_t device_cpu_few_rows(const struct device *d, const struct device_attend_args *a,
                            const struct device_span *s);
size_t device_cpu_sparse_scratch(const struct device *d, const struct device_attend_args *a,
                              const struct device_span *s);
void device_cpu_sparse(struct device *d, const struct device_attend_args *a,
                    const struct device_span *s, void *scratch);
/* The kernels of attention for keys and values of that kind. */
const struct kern_attend_table *device_cpu_kernels_of(const struct device *d,
                                                      const struct device_kv *kv, bool prompt);
void device_cpu_probe(struct device *d, const void *args, void *scratch);
void device_cpu_shadow_append(struct device *d, const void *args, void *scratch);
void device_cpu_select_pages(struct device *d, const void *args, void *scratch);
size_t device_cpu_select_pages_scratch(const struct device *d,
                                       const struct device_select_pages_args *a);
struct device_cost device_cpu_select_pages_cost(const struct device_select_pages_args *a);
void device_cpu_attend_selected(struct device *d, const void *args, void *scratch);
size_t device_cpu_attend_selected_scratch(const struct device *d,
                                        const struct device_attend_selected_args *a);
struct device_cost device_cpu_attend_selected_cost(const struct device_attend_selected_args *a);
struct device_cost device_cpu_attend_cost(const struct device *d,
                                          const struct device_attend_args *a);
size_t device_cpu_attend_scratch(const struct device *d, const struct device_attend_args *a);
void device_cpu_clamp(struct device *d, const void *args, void *scratch);
void device_cpu_layer_norm(struct device *d, const void *args, void *scratch);
void device_cpu_each(struct device *d, const void *args, void *scratch);
void device_cpu_dense_put(struct device *d, const void *args, void *scratch);
size_t device_cpu_dense_put_scratch(const struct device *d, const struct device_dense_put_args *a);
void device_cpu_dense_attend(struct device *d, const void *args, void *scratch);
size_t device_cpu_dense_attend_scratch(const struct device *d,
                                       const struct device_dense_attend_args *a);
struct device_cost device_cpu_dense_attend_cost(const struct device_dense_attend_args *a);
/* Bytes of a tile of n rows of a head's keys, and of its values. */
void device_cpu_dense_bytes(int64_t width, size_t *k, size_t *v);
void device_cpu_route(struct device *d, const void *args, void *scratch);
void device_cpu_hc_pre(struct device *d, const void *args, void *scratch);
void device_cpu_hc_post(struct device *d, const void *args, void *scratch);
void device_cpu_rows_append(struct device *d, const void *args, void *scratch);
void device_cpu_rows_read(struct device *d, const void *args, void *scratch);
void device_cpu_compress(struct device *d, const void *args, void *scratch);
size_t device_cpu_compress_scratch(const struct device *d, const struct device_compress_args *a);
void device_cpu_select(struct device *d, const void *args, void *scratch);
size_t device_cpu_select_scratch(const struct device *d, const struct device_select_args *a);
void device_cpu_attend_latent(struct device *d, const void *args, void *scratch);
size_t device_cpu_attend_latent_scratch(const struct device *d,
                                        const struct device_attend_latent_args *a);

#endif
