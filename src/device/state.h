/*
 * state - inside the room: what a device, its matrices and vectors are made of.
 */
#ifndef INGLE_DEVICE_STATE_H
#define INGLE_DEVICE_STATE_H

#include "device/card.h"
#include "device/table.h"

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
    uint8_t **each;       /* [n_stack]: where each one is, NULL for absent ones; or NULL */
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

/* Where one matrix of the stack is, of one that is not divided. */
static inline uint8_t *device_matrix_at(const struct device_matrix *m, int64_t index)
{
    return m->each ? m->each[index] : m->m.at + (size_t)index * m->stack_step;
}

/* The same for those panels that device_matrix_share() says: panel p is p * panel_bytes after
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
    int n_resting;           /* threads of it, as reported to the owner */
    bool left_out;           /* some were reported to the owner */
    struct numa_nodes nodes; /* that memory is spread over */
    bool placed; /* each node of the pool is to have rows of its own */
    int64_t small_work;      /* device_cpu_for(), of this step */
    int64_t quiet_small_work; /* the same where nobody else wants the processors */
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

#endif
