/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a model file with other codes.  Workers read, decode, encode and write rows of one tensor
 * at a time. */
#define _POSIX_C_SOURCE 200809L
#include "tool/tool.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/size.h"
#include "io/io.h"
#include "tool/budget.h"
#include "tool/importance.h"
#include "tool/recipe.h"
#include "tool/source.h"
#include "tool/would.h"
#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { CHUNK = 1 << 18 }; /* elements that a worker holds */

/* What becomes of a tensor. */
struct plan {
    const struct io_tensor *t;
    size_t i;             /* of the source */
    uint32_t type;
    uint64_t n_rows, n_bytes;
    bool fallback, ruled; /* ruled: a rule chose the code */
    double error;         /* of a sample, with --fit */
};

struct job {
    struct pool *pool;
    uint32_t cpu;
    const char *in_name;
    const struct tool_quantize_options *o;
    const struct report_sink *sink;
    struct tool_source *in;
    struct io_file *like;
    struct tool_importance *importance;
    struct io_gguf *out;
    const struct tool_recipe *recipe;
    bool is_tower; /* an mmproj file */
    struct plan *plan;
    size_t n, n_kept;                         /* kept: of an earlier call */
    uint64_t in_bytes, out_bytes, done_bytes; /* of tensors; done: of out_bytes */
    /* the tensor at work */
    const struct plan *now;
    size_t i_now, n_workers;
    int64_t chunk; /* the first of this batch */
    uint64_t rows_per_chunk, row_in, row_out, matrix_rows; /* rows of one matrix: an expert */
    float *weight;                                          /* [matrices][ne0], or NULL */
    struct worker *worker;
};

struct worker {
    float *x;
    unsigned char *raw, *code, *work;
    size_t raw_cap, code_cap, work_cap;
    uint64_t sum; /* of what it wrote, or read again, of the tensor */
    ingle_status status;
    struct err err;
};

static const char *code_name(uint32_t type)
{
    return quant_info(type)->name;
}

/* ---- which code ---- */

/* Whether name fits a pattern of '*', '?' and plain characters; one without '*' fits anywhere. */
static bool fits(const char *pattern, size_t n, const char *name)
{
    const char *star = NULL, *from = NULL, *p = pattern, *end = pattern + n;
    if (!memchr(pattern, '*', n)) {
        for (const char *at = name; *at; at++)
            if (strncmp(at, pattern, n) == 0)
                return true;
        return false;
    }
    while (*name) {
        if (p < end && (*p == '?' || *p == *name) && *p != '*')
            p++, name++;
        else if (p < end && *p == '*')
            star = p++, from = name;
        else if (star)
            p = star + 1, name = ++from;
        else
            return false;
    }
    while (p < end && *p == '*')
        p++;
    return p == end;
}

static ingle_status plan_tensor(struct job *j, struct tool_recipe_model *m, struct plan *p,
                                bool *rule_used, struct err *err)
{
    const struct io_tensor *t = p->t;
    uint32_t type =
        j->recipe || j->o->like || j->o->fit_bytes ? t->type : tool_source_type(j->in, p->i);
    if (!tool_recipe_keeps(t) && j->recipe) {
        type = tool_recipe_stays(j->recipe, t) ? t->type
               : j->o->pure                    ? tool_recipe_base(j->recipe)
                                               : tool_recipe_choose(j->recipe, m, t);
        if (j->o->keep_coded && tool_source_is_coded(j->in, p->i))
            type = t->type;
    }
    const struct io_tensor *like = j->like ? io_tensor_find(j->like, t->name) : NULL;
    if (like && !tool_recipe_keeps(t))
        type = like->type;
    for (size_t i = 0; i < j->o->n_rules; i++)
        if (j->o->rule[i].exact ? strcmp(j->o->rule[i].pattern, t->name) == 0
                                : fits(j->o->rule[i].pattern, j->o->rule[i].n_pattern, t->name)) {
            if (strcasecmp(j->o->rule[i].code, "COPY") == 0)
                type = t->type;
            else if (!tool_recipe_code(j->o->rule[i].code, &type))
                return err_set(err, INGLE_ARG, "no code '%s' for tensors", j->o->rule[i].code);
            rule_used[i] = p->ruled = true;
            if (tool_recipe_keeps(t) && quant_info(type)->quantised)
                return err_set(err, INGLE_ARG,
                               "tensor '%s' stays %s: norms, routers, tables and biases are not "
                               "quantised, not to %s",
                               t->name, code_name(t->type), code_name(type));
        }
    if (j->is_tower && quant_info(type)->quantised && type != QUANT_Q8_0)
        return err_set(err, INGLE_ARG,
                       "%s: tensor '%s' would be %s: encoders of pictures and sound have F32, F16, "
                       "BF16 or Q8_0",
                       j->in_name, t->name, code_name(type));
    if (type != t->type && !quant_can_fit(type))
        return err_set(err, INGLE_UNSUP, "tensor '%s' would be %s, which ingle does not write",
                       t->name, code_name(type));
    p->type = tool_recipe_fallback(type, t->ne[0]);
    p->fallback = p->type != type;
    if (p->fallback)
        report(j->sink, INGLE_REPORT_WARN, "quantize", t->name,
               "rows of %llu are no whole blocks of %s: %s instead", (unsigned long long)t->ne[0],
               code_name(type), code_name(p->type));
    p->n_rows = 1;
    for (uint32_t i = 1; i < t->n_dims; i++)
        p->n_rows *= t->ne[i]; /* the reader has checked the product */
    if (!quant_bytes(p->type, t->ne[0], p->n_rows, &p->n_bytes))
        return err_set(err, INGLE_FORMAT,
                       "%s: tensor '%s': rows of %llu elements are no whole blocks of %s",
                       j->in_name, t->name, (unsigned long long)t->ne[0], code_name(p->type));
    return INGLE_OK;
}

static void read_shape(struct job *j, struct tool_recipe_model *m)
{
    const struct io_meta *meta = tool_source_meta(j->in);
    const char *arch = NULL;
    size_t n = 0;
    if (!io_get_str(meta, "general.architecture", &arch, &n, NULL))
        j->is_tower = n == 4 && !memcmp(arch, "clip", 4);
    char key[160];
    uint64_t heads = 0, kv = 0;
    if (io_get_str(meta, "general.architecture", &arch, &n, NULL) == INGLE_OK && n < 100) {
        snprintf(key, sizeof key, "%.*s.block_count", (int)n, arch);
        if (io_get_u64(meta, key, 1, 4096, &m->n_layers, NULL))
            m->n_layers = 0;
        snprintf(key, sizeof key, "%.*s.attention.head_count", (int)n, arch);
        const bool has = io_get_u64s(meta, key, 1, 1, 65536, &heads, NULL) == INGLE_OK;
        snprintf(key, sizeof key, "%.*s.attention.head_count_kv", (int)n, arch);
        if (has && io_get_u64s(meta, key, 1, 1, 65536, &kv, NULL) == INGLE_OK)
            m->heads_per_kv = heads / kv;
    }
    for (size_t i = 0; i < j->n; i++)
        m->n_v += strstr(tool_source_at(j->in, i)->name, "attn_v.") != NULL;
    m->has_output = tool_source_find(j->in, "output.weight") != NULL;
    m->has_importance = j->importance != NULL;
}

static ingle_status make_plan(struct job *j, struct err *err)
{
    struct tool_recipe_model m = {0};
    bool used[64] = {false};
    ingle_status s = INGLE_OK;
    if (j->o->n_rules > 64)
        return err_set(err, INGLE_LIMIT, "%zu rules for tensors, the limit is 64", j->o->n_rules);
    j->n = tool_source_n(j->in);
    j->plan = mem_calloc(j->n ? j->n : 1, sizeof *j->plan);
    if (!j->plan)
        return err_set(err, INGLE_NOMEM, "%s: no memory for %zu tensors", j->in_name, j->n);
    read_shape(j, &m);
    for (size_t i = 0; i < j->n && !s; i++) {
        j->plan[i].t = tool_source_at(j->in, i);
        j->plan[i].i = i;
        s = plan_tensor(j, &m, &j->plan[i], used, err);
        j->in_bytes += j->plan[i].t->n_bytes;
        j->out_bytes += j->plan[i].n_bytes;
    }
    size_t n_rounded = 0;
    for (size_t i = 0; i < j->n && !s && !j->recipe && !j->like && !j->o->fit_bytes &&
                       !tool_source_is_back(j->in);
         i++)
        n_rounded += !j->plan[i].ruled && tool_source_type(j->in, i) != j->plan[i].t->type;
    if (n_rounded)
        report(j->sink, INGLE_REPORT_WARN, "convert", j->in_name,
               "%zu matrices have scales that are no powers of two: their values are rounded to "
               "BF16 (--outtype f32 keeps them)",
               n_rounded);
    for (size_t i = 0; i < j->o->n_rules && !s; i++)
        if (!used[i] && !j->o->rule[i].exact)
            s = err_set(err, INGLE_ARG, "%s: no tensor fits the pattern '%.*s'", j->in_name,
                        (int)j->o->rule[i].n_pattern, j->o->rule[i].pattern);
    return s;
}

/* How many of the tokens compute with an expert. */
static double expert_share(const struct job *j)
{
    const struct io_meta *meta = tool_source_meta(j->in);
    const char *arch = NULL;
    size_t n = 0;
    char key[160];
    uint64_t all, used;
    if (io_get_str(meta, "general.architecture", &arch, &n, NULL) || n > 100)
        return 1;
    snprintf(key, sizeof key, "%.*s.expert_count", (int)n, arch);
    if (io_get_u64(meta, key, 1, 65536, &all, NULL))
        return 1;
    snprintf(key, sizeof key, "%.*s.expert_used_count", (int)n, arch);
    return io_get_u64(meta, key, 1, all, &used, NULL) ? 1 : (double)used / (double)all;
}

/* --fit: codes by measured errors. */
static ingle_status fit_plan(struct job *j, struct err *err)
{
    struct tool_budget_item *item = mem_calloc(j->n ? j->n : 1, sizeof *item);
    const double share = expert_share(j);
    ingle_status s =
        item ? INGLE_OK
             : err_set(err, INGLE_NOMEM, "%s: no memory for %zu tensors", j->in_name, j->n);
    for (size_t i = 0; i < j->n && !s; i++) {
        const struct plan *p = &j->plan[i];
        item[i] =
            (struct tool_budget_item){.t = p->t,
                                      .i = p->i,
                                      .n_rows = p->n_rows,
                                      .n_bytes = p->n_bytes,
                                      .type = p->type,
                                      .choose = !p->ruled && !tool_recipe_keeps(p->t) &&
                                                !(j->recipe && tool_recipe_stays(j->recipe, p->t)),
                                      .least = j->recipe ? tool_recipe_base(j->recipe) : QUANT_F32,
                                      .weight = strstr(p->t->name, "_exps") ? share : 1};
    }
    if (!s)
        s = tool_budget(j->pool, j->cpu, j->in, item, j->n, j->o->fit_bytes, j->sink, err);
    j->out_bytes = 0;
    for (size_t i = 0; i < j->n && !s; i++) {
        struct plan *p = &j->plan[i];
        p->type = item[i].type;
        p->error = item[i].error;
        if (!quant_bytes(p->type, p->t->ne[0], p->n_rows, &p->n_bytes))
            s = err_set(err, INGLE_FORMAT, "%s: tensor '%s' has no size", j->in_name, p->t->name);
        j->out_bytes += p->n_bytes;
    }
    mem_free(item);
    return s;
}

/* ---- importance ---- */

/* That of the tensor; up and gate of a layer are multiplied with the same, so one may stand for the
 * other.  NULL: none. */
static const struct tool_importance_entry *importance_of(const struct job *j, const char *name)
{
    static const char *const pair[2] = {"ffn_gate", "ffn_up"};
    const struct tool_importance_entry *e =
        j->importance ? tool_importance_find(j->importance, name) : NULL;
    for (int i = 0; i < 2 && !e && j->importance; i++) {
        char other[TOOL_IMPORTANCE_NAME];
        const char *at = strstr(name, pair[i]), *rest = at ? at + strlen(pair[i]) : NULL;
        if (at && (*rest == '.' || !strncmp(rest, "_exps.", 6))) {
            snprintf(other, sizeof other, "%.*s%s%s", (int)(at - name), name, pair[1 - i], rest);
            e = tool_importance_find(j->importance, other);
        }
    }
    return e;
}

/* The importance of the tensor's columns, for each of its matrices: mean square of what they were
 * multiplied with; matrices that never were have ones. */
static ingle_status take_importance(struct job *j, const struct io_tensor *t, uint64_t n_matrices,
                                    struct err *err)
{
    const struct tool_importance_entry *e = importance_of(j, t->name);
    if (!e) {
        report(j->sink, INGLE_REPORT_NOTE, "quantize", t->name, "%s has no importance for it",
               j->o->imatrix);
        return INGLE_OK;
    }
    const uint64_t n = t->ne[0] * n_matrices; /* the reader has checked the product */
    const bool joined = e->n_matrices == 1 && e->width == n; /* of the older form */
    if (!joined && (e->width != t->ne[0] || e->n_matrices != n_matrices))
        return err_set(
            err, INGLE_FORMAT, "%s: importance of tensor '%s' is %llu x %llu, not %llu x %llu",
            j->o->imatrix, t->name, (unsigned long long)e->width, (unsigned long long)e->n_matrices,
            (unsigned long long)t->ne[0], (unsigned long long)n_matrices);
    j->weight = mem_calloc((size_t)n, sizeof(float));
    if (!j->weight)
        return err_set(err, INGLE_NOMEM, "no memory for the importance of tensor '%s'", t->name);
    for (uint64_t k = 0; k < n; k++) {
        const float c = e->count[joined ? 0 : k / t->ne[0]];
        j->weight[k] = c > 0 ? e->sum2[k] / c : 1;
    }
    return INGLE_OK;
}

/* ---- the work ---- */

static ingle_status worker_room(struct job *j, struct worker *w, uint64_t rows)
{
    const size_t n_raw = (size_t)(rows * j->row_in), n_code = (size_t)(rows * j->row_out);
    const size_t n_work = tool_source_work(j->in, j->now->i, rows);
    if (!mem_grow(&w->raw, &w->raw_cap, n_raw, 1) || !mem_grow(&w->code, &w->code_cap, n_code, 1) ||
        !mem_grow(&w->work, &w->work_cap, n_work, 1))
        return err_set(&w->err, INGLE_NOMEM, "no memory for rows of tensor '%s'", j->now->t->name);
    return INGLE_OK;
}

/* Sums of pieces are added: workers end in any order. */
static ingle_status put(struct job *j, struct worker *w, uint64_t at, const void *bytes, size_t n)
{
    w->sum += XXH3_64bits_withSeed(bytes, n, at);
    return io_gguf_write(j->out, j->i_now, at, bytes, n, &w->err);
}

/* The same pieces as they are in the file. */
static ingle_status read_again(struct job *j, struct worker *w, uint64_t first, uint64_t rows)
{
    const size_t n = (size_t)(rows * j->row_out);
    const ingle_status s = io_gguf_read(j->out, j->i_now, first * j->row_out, w->code, n, &w->err);
    if (!s)
        w->sum += XXH3_64bits_withSeed(w->code, n, first * j->row_out);
    return s;
}

/* Rows of one matrix: they have the same importance. */
static ingle_status encode_rows(struct job *j, struct worker *w, uint64_t first, uint64_t rows)
{
    const struct io_tensor *t = j->now->t;
    const size_t n = (size_t)t->ne[0];
    const struct quant_info *info = quant_info(t->type);
    ingle_status s = tool_source_rows(j->in, j->now->i, first, rows, w->work, w->raw, &w->err);
    if (s)
        return s;
    const int64_t bad = quant_find_bad(t->type, w->raw, (size_t)(rows * n / info->n));
    if (bad >= 0)
        return err_set(&w->err, INGLE_FORMAT, "%s: tensor '%s': element %llu is no finite number",
                       j->in_name, t->name,
                       (unsigned long long)(first * n + (uint64_t)bad * info->n));
    if (t->type == j->now->type)
        return put(j, w, first * j->row_in, w->raw, (size_t)(rows * j->row_in));
    quant_decode(t->type, w->raw, w->x, (size_t)rows * n);
    /* encoders as upstream's converter writes them, to the bit */
    if (!j->is_tower || !quant_encode(j->now->type, w->x, w->code, (size_t)rows * n))
        quant_fit(j->cpu, j->now->type, w->x,
                  j->weight ? j->weight + first / j->matrix_rows * n : NULL, w->code, n,
                  (size_t)rows);
    const int64_t large =
        quant_find_bad(j->now->type, w->code, (size_t)(rows * n / quant_info(j->now->type)->n));
    if (large >= 0)
        return err_set(
            &w->err, INGLE_LIMIT, "%s: tensor '%s': values about element %llu are too large for %s",
            j->in_name, t->name,
            (unsigned long long)(first * n + (uint64_t)large * quant_info(j->now->type)->n),
            code_name(j->now->type));
    return put(j, w, first * j->row_out, w->code, (size_t)(rows * j->row_out));
}

typedef ingle_status rows_fn(struct job *j, struct worker *w, uint64_t first, uint64_t rows);

static void work_on(struct job *j, int64_t chunk, struct worker *w, rows_fn *fn)
{
    uint64_t first = (uint64_t)(j->chunk + chunk) * j->rows_per_chunk;
    const uint64_t left = j->now->n_rows - first,
                   end = first + (left < j->rows_per_chunk ? left : j->rows_per_chunk);
    if (w->status)
        return;
    w->status = worker_room(j, w, end - first);
    while (first < end && !w->status) {
        const uint64_t in_matrix = j->matrix_rows - first % j->matrix_rows;
        const uint64_t rows = in_matrix < end - first ? in_matrix : end - first;
        w->status = fn(j, w, first, rows);
        first += rows;
    }
}

static void work(void *arg, int64_t chunk, int worker)
{
    struct job *j = arg;
    work_on(j, chunk, &j->worker[worker], encode_rows);
}

static void add_chunk(void *arg, int64_t chunk, int worker)
{
    struct job *j = arg;
    work_on(j, chunk, &j->worker[worker], read_again);
}

/* All chunks of the tensor at work. */
static ingle_status run_chunks(struct job *j, const struct plan *p, pool_fn *fn, uint64_t *sum,
                               struct err *err)
{
    const int64_t n_chunks = num_div_up((int64_t)p->n_rows, (int64_t)j->rows_per_chunk),
                  batch = 8 * (int64_t)j->n_workers;
    ingle_status s = INGLE_OK;
    for (size_t k = 0; k < j->n_workers; k++)
        j->worker[k].sum = 0;
    /* progress is reported between batches */
    for (j->chunk = 0; j->chunk < n_chunks && !s; j->chunk += batch) {
        const int64_t n = num_min(batch, n_chunks - j->chunk);
        pool_run(j->pool, n, fn, j);
        for (size_t k = 0; k < j->n_workers && !s; k++)
            if (j->worker[k].status) {
                s = j->worker[k].status;
                j->worker[k].status = INGLE_OK;
                if (err)
                    *err = j->worker[k].err;
            }
        const double part = (double)(j->chunk + n) / (double)n_chunks * (double)p->n_bytes;
        if (!s && report_progress(j->sink, j->o->job ? j->o->job : "quantize",
                                  (double)j->done_bytes + part, (double)j->out_bytes))
            s = err_set(err, INGLE_CANCEL, "%s: stopped: the same command goes on", j->in_name);
    }
    *sum = 0;
    for (size_t k = 0; k < j->n_workers; k++)
        *sum += j->worker[k].sum;
    return s;
}

/* Whether an earlier call has written the tensor, and it is there as it was written. */
static bool is_written(struct job *j, size_t i)
{
    uint64_t noted, sum;
    if (!io_gguf_known(j->out, i, &noted) || run_chunks(j, j->now, add_chunk, &sum, NULL) ||
        sum != noted)
        return false;
    j->n_kept++;
    return true;
}

static ingle_status convert_tensor(struct job *j, size_t i, struct err *err)
{
    const struct plan *p = &j->plan[i];
    const struct io_tensor *t = p->t;
    uint64_t n_matrices = 1;
    ingle_status s = INGLE_OK;
    for (uint32_t k = 2; k < t->n_dims; k++)
        n_matrices *= t->ne[k];
    j->now = p;
    j->i_now = i;
    j->row_in = t->n_bytes / p->n_rows;
    j->row_out = p->n_bytes / p->n_rows;
    j->matrix_rows = p->n_rows / n_matrices;
    j->rows_per_chunk = t->ne[0] >= CHUNK ? 1 : CHUNK / t->ne[0];
    if (is_written(j, i)) {
        j->done_bytes += p->n_bytes;
        return INGLE_OK;
    }
    if (j->importance && quant_info(p->type)->quantised && p->type != t->type)
        s = take_importance(j, t, n_matrices, err);
    /* a row that is longer than a chunk */
    for (size_t k = 0; k < j->n_workers && !s && t->ne[0] > CHUNK; k++) {
        mem_free(j->worker[k].x);
        if (!(j->worker[k].x = mem_calloc((size_t)t->ne[0], sizeof(float))))
            s = err_set(err, INGLE_NOMEM, "no memory for a row of tensor '%s'", t->name);
    }
    uint64_t sum = 0;
    if (!s)
        s = run_chunks(j, p, work, &sum, err);
    if (!s)
        s = io_gguf_note(j->out, i, sum, err);
    j->done_bytes += p->n_bytes;
    mem_free(j->weight);
    j->weight = NULL;
    return s;
}

/* general.file_type of a file whose codes nobody named: by its 4-bit experts, or by what most bytes
 * are. */
static uint32_t file_type(const struct job *j)
{
    static const struct {
        uint32_t type, file_type;
    } known[] = {{QUANT_F32, 0},    {QUANT_F16, 1},  {QUANT_BF16, 32}, {QUANT_MXFP4, 38},
                 {QUANT_NVFP4, 39}, {QUANT_Q4_0, 2}, {QUANT_Q5_0, 8},  {QUANT_Q8_0, 7}};
    uint64_t most = 0;
    uint32_t is = 0;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        uint64_t n = 0;
        for (size_t i = 0; i < j->n; i++)
            if (j->plan[i].type == known[k].type && j->plan[i].t->n_dims > 1 &&
                (!j->is_tower || !tool_recipe_keeps(j->plan[i].t)))
                n += j->plan[i].n_bytes;
        if (n > most || (n && (known[k].type == QUANT_MXFP4 || known[k].type == QUANT_NVFP4))) {
            most = known[k].type == QUANT_MXFP4 || known[k].type == QUANT_NVFP4 ? UINT64_MAX : n;
            is = known[k].file_type;
        }
    }
    return is;
}

static ingle_status write_tensors(struct job *j, struct err *err)
{
    const size_t n_files = j->o->keep_split ? io_n_files(tool_source_file(j->in)) : 0;
    uint32_t part = 0;
    ingle_status s = INGLE_OK;
    for (size_t i = 0; i < j->n && !s; i++) {
        const struct io_tensor *t = j->plan[i].t;
        for (; n_files && part < t->file; part++)
            io_gguf_next_part(j->out);
        s = io_gguf_tensor(j->out, t->name, j->plan[i].type, t->n_dims ? t->n_dims : 1, t->ne, err);
    }
    for (; part + 1 < n_files; part++)
        io_gguf_next_part(j->out);
    return s;
}

static ingle_status write_head(struct job *j, struct err *err)
{
    uint64_t type = 0;
    if (tool_source_is_back(j->in))
        return write_tensors(j, err);
    static const char made_of[] = "safetensors";
    ingle_status s = tool_source_is_gguf(j->in)
                         ? INGLE_OK
                         : io_gguf_str(j->out, OUTPUT_CONVERTED, made_of, sizeof made_of - 1, err);
    if (!s)
        s = tool_source_head(j->in, j->out, err);
    if (j->recipe)
        type = tool_recipe_file_type(j->recipe);
    else if (!j->like ||
             io_get_u64(io_metadata(j->like), "general.file_type", 0, UINT32_MAX, &type, NULL))
        type = j->like || j->o->fit_bytes ? 0 : file_type(j);
    if (!j->recipe && !j->like && !j->o->fit_bytes && tool_source_is_gguf(j->in))
        (void)!io_get_u64(tool_source_meta(j->in), "general.file_type", 0, UINT32_MAX, &type,
                          NULL); /* a copy */
    if (!s)
        s = io_gguf_u32(j->out, "general.file_type", (uint32_t)type, err);
    if (!s)
        s = io_gguf_u32(j->out, "general.quantization_version", 2, err);
    if (!s && j->importance)
        s = io_gguf_str(j->out, "quantize.imatrix.file", j->o->imatrix, strlen(j->o->imatrix), err);
    return s ? s : write_tensors(j, err);
}

static void summary(const struct job *j, struct str *out)
{
    uint64_t n[256] = {0}, bytes[256] = {0}, elements = 0, fallbacks = 0;
    for (size_t i = 0; i < j->n; i++) {
        const struct plan *p = &j->plan[i];
        n[p->type & 255]++;
        bytes[p->type & 255] += p->n_bytes;
        elements += p->n_rows * p->t->ne[0];
        fallbacks += p->fallback;
        if (p->error > 0) {
            str_add_column(out, p->t->name, 40);
            str_addf(out, "%-8s error %.2e\n", code_name(p->type), p->error);
        }
    }
    for (uint32_t t = 0; t < 256; t++)
        if (n[t])
            str_addf(out, "%-8s %6llu tensors %14s\n", code_name(t), (unsigned long long)n[t],
                     SIZE_OF(bytes[t]));
    str_addf(out, "%s became %s, %.2f bits a weight", SIZE_OF(j->in_bytes),
             SIZE_OF(j->out_bytes), elements ? 8.0 * (double)j->out_bytes / (double)elements : 0);
    if (fallbacks)
        str_addf(out, "; %llu tensors have another code than asked, for the length of their rows",
                 (unsigned long long)fallbacks);
    if (j->n_kept)
        str_addf(out, "; %zu of %zu tensors were written by an earlier call", j->n_kept, j->n);
    str_adds(out, "\n");
}

/* Importance of another model is a mistake. */
static ingle_status check_importance(const struct job *j, const char *in, struct err *err)
{
    for (size_t i = 0; i < tool_source_n(j->in); i++)
        if (tool_importance_find(j->importance, tool_source_at(j->in, i)->name))
            return INGLE_OK;
    return err_set(err, INGLE_ARG, "%s: has importance for none of the tensors of %s",
                   j->o->imatrix, in);
}

static ingle_status open_all(struct job *j, const char *in, struct err *err)
{
    ingle_status s = tool_source_open(&j->in, in, j->o->source, j->sink, err);
    if (!s && j->o->like)
        s = io_open(&j->like, j->o->like, j->sink, err);
    if (!s && j->o->imatrix)
        s = tool_importance_create(&j->importance, err);
    if (!s && j->o->imatrix)
        s = tool_importance_read(j->importance, j->o->imatrix, j->sink, err);
    if (!s && j->o->imatrix)
        s = check_importance(j, in, err);
    if (!s && j->o->code && !(j->recipe = tool_recipe_find(j->o->code))) {
        struct str names;
        str_init(&names);
        tool_recipe_names(&names);
        s = err_set(err, INGLE_ARG, "no code or recipe '%s'; there are: %s", j->o->code,
                    str_ok(&names) ? names.at : "");
        str_release(&names);
    }
    if (!s && j->o->keep_split && !tool_source_is_gguf(j->in))
        s = err_set(err, INGLE_ARG,
                    "%s: --keep-split is for GGUF files in parts: --split-max-size writes parts of "
                    "a checkpoint",
                    in);
    return s;
}

static void add_stat(XXH3_state_t *h, const char *path)
{
    struct stat st = {0};
    const bool is = stat(path, &st) == 0;
    const int64_t v[] = {is,
                         (int64_t)st.st_size,
                         (int64_t)st.st_ino,
                         (int64_t)st.st_mtim.tv_sec,
                         (int64_t)st.st_mtim.tv_nsec,
                         (int64_t)st.st_ctim.tv_sec,
                         (int64_t)st.st_ctim.tv_nsec};
    (void)XXH3_64bits_update(h, v, sizeof v);
}

/* What the values come from: files that are other ones make another file. */
static ingle_status source_hash(const struct job *j, uint64_t *out, struct err *err)
{
    static const char *const side[] = {"config.json", "hf_quant_config.json"};
    const struct io_file *f = tool_source_file(j->in);
    XXH3_state_t *h = XXH3_createState();
    if (!h)
        return err_set(err, INGLE_NOMEM, "%s: no memory to write from it", j->in_name);
    (void)XXH3_64bits_reset(h);
    for (size_t i = 0; i < io_n_files(f); i++) {
        struct io_stamp stamp = {0};
        (void)io_stamp(f, i, &stamp);
        (void)XXH3_64bits_update(h, &stamp, sizeof stamp);
    }
    for (size_t i = 0; i < sizeof side / sizeof *side; i++) {
        char path[4096];
        if ((size_t)snprintf(path, sizeof path, "%s/%s", j->in_name, side[i]) < sizeof path)
            add_stat(h, path);
    }
    if (j->o->imatrix)
        add_stat(h, j->o->imatrix);
    *out = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    return INGLE_OK;
}

/* dir: of a checkpoint, whose other files stand there before the weights do; or NULL. */
static ingle_status convert_all(struct job *j, const char *out, const char *dir, struct err *err)
{
    ingle_status s = INGLE_OK;
    j->n_workers = (size_t)pool_size(j->pool);
    j->worker = mem_calloc(j->n_workers, sizeof *j->worker);
    if (!j->worker)
        return err_set(err, INGLE_NOMEM, "no memory for %zu threads", j->n_workers);
    for (size_t i = 0; i < j->n_workers && !s; i++)
        if (!(j->worker[i].x = mem_calloc(CHUNK, sizeof(float))))
            s = err_set(err, INGLE_NOMEM, "no memory for %zu threads", j->n_workers);
    if (!s)
        s = io_gguf_create(&j->out, out, err);
    uint64_t source = 0;
    if (!s)
        s = source_hash(j, &source, err);
    if (!s) {
        io_gguf_split(j->out, j->o->split_bytes, j->o->split_tensors);
        io_gguf_keep(j->out, source);
        if (tool_source_is_back(j->in))
            io_gguf_safetensors(j->out);
        io_gguf_output(j->out, tool_source_is_back(j->in) ? OUTPUT_WEIGHTS : OUTPUT_MODEL,
                       j->o->guard, j->o->force);
        s = write_head(j, err);
    }
    if (!s)
        s = io_gguf_begin(j->out, err);
    for (size_t i = 0; i < j->n && !s; i++)
        s = convert_tensor(j, i, err);
    if (!s && dir)
        s = tool_source_side_files(j->in, dir, err);
    if (!s) {
        s = io_gguf_finish(j->out, err);
        j->out = NULL;
        if (s && dir)
            tool_source_drop_side_files(dir);
    }
    return s;
}

/* ---- before anything is written ---- */

/* Small tensors, whose values a family checks, as they will be; zeros for the others. */
static ingle_status planned_read(void *arg, const struct io_tensor *t, uint64_t offset, void *dst,
                                 size_t n, struct err *err)
{
    struct job *j = arg;
    size_t i = 0;
    memset(dst, 0, n);
    while (i < j->n && strcmp(j->plan[i].t->name, t->name) != 0)
        i++;
    if (i == j->n || j->plan[i].type != j->plan[i].t->type || offset || n != j->plan[i].n_bytes)
        return INGLE_OK;
    const struct plan *p = &j->plan[i];
    uint64_t n_matrices = 1;
    for (uint32_t k = 2; k < p->t->n_dims; k++)
        n_matrices *= p->t->ne[k];
    const uint64_t rows = p->n_rows / n_matrices;
    void *work = mem_alloc(tool_source_work(j->in, p->i, rows) + 1);
    ingle_status s =
        work ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", t->name);
    for (uint64_t k = 0; k < n_matrices && !s; k++)
        s = tool_source_rows(j->in, p->i, k * rows, rows, work,
                             (char *)dst + k * rows * (n / p->n_rows), err);
    mem_free(work);
    return s;
}

/* The new file as a reader will see it. */
static ingle_status plan_file(struct job *j, const char *out, struct io_file **file,
                              struct err *err)
{
    ingle_status s = io_gguf_create(&j->out, out, err);
    if (!s)
        s = write_head(j, err);
    if (!s)
        s = io_gguf_plan(j->out, &(struct io_planned){planned_read, j}, file, err);
    io_gguf_drop(j->out);
    j->out = NULL;
    return s;
}

/* Whether ingle would load it: asked of the family. */
static ingle_status check_family(struct job *j, const char *out, struct err *err)
{
    struct io_file *file = NULL;
    bool known;
    struct err why;
    ingle_status s = tool_source_is_back(j->in) ? io_open(&file, j->in_name, NULL, &why)
                                                : plan_file(j, out, &file, &why);
    if (!s)
        s = tool_would_load(file, &known, &why);
    io_close(file);
    if (s && j->o->force && s != INGLE_NOMEM) {
        report(j->sink, INGLE_REPORT_WARN, j->o->job ? j->o->job : "quantize", j->in_name,
               "ingle would not load the result: %s", why.msg);
        return INGLE_OK;
    }
    return s ? err_set(err, s,
                       "%s: nothing is written, because ingle would not load the result: %s "
                       "(--force writes it)",
                       j->in_name, why.msg)
             : INGLE_OK;
}

static bool few_bits(uint32_t type)
{
    return type == QUANT_IQ1_S || type == QUANT_IQ1_M || type == QUANT_IQ2_XXS ||
           type == QUANT_IQ2_XS || type == QUANT_IQ2_S || type == QUANT_Q2_K;
}

/* What a person should know before the work begins. */
static void warn_plan(const struct job *j)
{
    size_t n_few = 0, n_bare = 0;
    uint64_t bytes[256] = {0};
    uint32_t most = 256;
    const char *in = j->in_name;
    for (size_t i = 0; i < j->n; i++) {
        const struct plan *p = &j->plan[i];
        const bool other = p->type != p->t->type;
        if (other && few_bits(p->type) && strcmp(p->t->name, "token_embd.weight") != 0) {
            n_few++;
            n_bare += !importance_of(j, p->t->name);
        }
        if (other && quant_info(p->t->type)->quantised)
            bytes[p->t->type & 255] += p->t->n_bytes;
    }
    for (uint32_t t = 0; t < 256; t++)
        if (bytes[t] && (most == 256 || bytes[t] > bytes[most]))
            most = t;
    if (n_bare && !j->importance)
        report(j->sink, INGLE_REPORT_WARN, "quantize", in,
               "%zu tensors get codes of 1 and 2 bits without importance: --imatrix FILE makes "
               "them much better ('ingle imatrix' measures it)",
               n_bare);
    else if (n_bare)
        report(j->sink, INGLE_REPORT_WARN, "quantize", j->o->imatrix,
               "has no importance for %zu of %zu tensors that get codes of 1 and 2 bits", n_bare,
               n_few);
    if (j->o->job)
        return;
    if (most < 256 && !j->o->requantize)
        report(j->sink, INGLE_REPORT_WARN, "quantize", in,
               "is %s already: what that rounded away does not come back; use a BF16 or F16 file "
               "(--allow-requantize: no warning)",
               code_name(most));
    if (j->out_bytes > j->in_bytes)
        report(j->sink, INGLE_REPORT_WARN, "quantize", in, "becomes larger: %s from %s",
               SIZE_OF(j->out_bytes), SIZE_OF(j->in_bytes));
}

/* Weights of another checkpoint are not written over, and would be read with the new ones. */
static ingle_status refuse_weights(const char *dir, struct err *err)
{
    static const char end[] = ".safetensors";
    const size_t k = sizeof end - 1;
    ingle_status s = INGLE_OK;
    DIR *d = opendir(dir);
    if (!d)
        return err_set(err, INGLE_IO, "%s: cannot create a folder of this name", dir);
    for (struct dirent *e; !s && (e = readdir(d));) {
        const size_t n = strlen(e->d_name);
        if (n > k && !strcmp(e->d_name + n - k, end))
            s = err_set(err, INGLE_ARG, "%s: has a checkpoint already: %s", dir, e->d_name);
    }
    closedir(d);
    return s;
}

/* Files of this call's folder that stand there: those of a call that was ended stay its own, others
 * are not replaced. */
static ingle_status refuse_side_files(const struct job *j, const char *dir, struct err *err)
{
    struct stat is;
    struct str path;
    const char *name;
    ingle_status s = INGLE_OK;
    str_init(&path);
    str_addf(&path, "%s/model.safetensors.part.state", dir);
    const bool goes_on = str_ok(&path) && stat(path.at, &is) == 0;
    for (size_t i = 0; !s && (name = tool_source_side_name(i)) != NULL; i++) {
        str_clear(&path);
        str_addf(&path, "%s/%s", dir, name);
        if (!str_ok(&path))
            s = err_set(err, INGLE_NOMEM, "%s: no memory for a path", dir);
        else if (j->o->guard)
            s = output_guard_check(j->o->guard, path.at, err);
        if (!s && !goes_on && !j->o->force && stat(path.at, &is) == 0)
            s = err_set(err, INGLE_ARG,
                        "%s: is there and stays: choose another folder, or --force to replace it",
                        path.at);
    }
    str_release(&path);
    return s;
}

/* A directory: the weights are the last to appear, and what fails leaves nothing. */
static ingle_status convert_back(struct job *j, const char *dir, struct err *err)
{
    struct str path;
    const ingle_status can = tool_source_side_files(j->in, NULL, err);
    if (can)
        return can;
    const bool is_new = !mkdir(dir, 0777);
    ingle_status there = refuse_weights(dir, err);
    if (!there)
        there = refuse_side_files(j, dir, err);
    if (there)
        return there;
    str_init(&path);
    str_addf(&path, "%s/model.safetensors", dir);
    const ingle_status s = str_ok(&path) ? convert_all(j, path.at, dir, err)
                                         : err_set(err, INGLE_NOMEM, "%s: no memory", dir);
    str_release(&path);
    if (s && s != INGLE_CANCEL) {
        io_gguf_drop(j->out);
        j->out = NULL;
        if (is_new)
            (void)rmdir(dir);
    }
    return s;
}

/* Of {ftype} and {outtype} in a name, {FTYPE} and {OUTTYPE}: the code that was asked, or that most
 * bytes have. */
static ingle_status name_of_out(const struct job *j, const char *out, struct str *name,
                                struct err *err)
{
    static const char *const hole[] = {"{ftype}", "{outtype}", "{FTYPE}", "{OUTTYPE}"};
    uint64_t bytes[256] = {0};
    uint32_t most = 0;
    for (size_t i = 0; i < j->n; i++)
        bytes[j->plan[i].type & 255] += j->plan[i].n_bytes;
    for (uint32_t t = 0; t < 256; t++)
        most = bytes[t] > bytes[most] ? t : most;
    const char *code = j->recipe ? tool_recipe_name(j->recipe) : j->n ? code_name(most) : "";
    while (*out) {
        size_t k = 0;
        while (k < 4 && strncmp(out, hole[k], strlen(hole[k])) != 0)
            k++;
        for (const char *c = code; k < 4 && *c; c++)
            str_addc(name, (char)(k < 2 ? tolower((unsigned char)*c) : *c));
        if (k == 4)
            str_addc(name, *out);
        out += k < 4 ? strlen(hole[k]) : 1;
    }
    return str_ok(name) ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a name");
}

bool tool_quantize_is_partial(const char *code)
{
    const struct tool_recipe *r = tool_recipe_find(code);
    return r && tool_recipe_is_partial(r);
}

ingle_status tool_quantize(struct pool *p, uint32_t cpu, const char *in, const char *out,
                           const struct tool_quantize_options *o, const struct report_sink *sink,
                           struct str *text, struct err *err)
{
    struct job j = {.pool = p, .cpu = cpu, .in_name = in, .o = o, .sink = sink};
    ingle_status s = open_all(&j, in, err);
    if (!s)
        s = make_plan(&j, err);
    struct str name;
    str_init(&name);
    if (!s)
        s = name_of_out(&j, out, &name, err);
    out = name.at ? name.at : out;
    if (!s)
        s = check_family(&j, out, err);
    if (!s && o->fit_bytes)
        s = fit_plan(&j, err);
    if (!s)
        warn_plan(&j);
    if (!s && !o->dry && tool_source_is_back(j.in))
        s = convert_back(&j, out, err);
    else if (!s && !o->dry)
        s = convert_all(&j, out, NULL, err);
    if (!s)
        summary(&j, text);
    str_release(&name);
    if (s == INGLE_CANCEL)
        io_gguf_leave(j.out);
    else
        io_gguf_drop(j.out);
    for (size_t i = 0; j.worker && i < j.n_workers; i++) {
        mem_free(j.worker[i].x);
        mem_free(j.worker[i].raw);
        mem_free(j.worker[i].code);
        mem_free(j.worker[i].work);
    }
    mem_free(j.worker);
    mem_free(j.plan);
    if (!s && j.in)
        tool_source_say(j.in);
    tool_source_close(j.in);
    io_close(j.like);
    tool_importance_free(j.importance);
    return s;
}
