/* SPDX-License-Identifier: Apache-2.0 */
/* source - which tensors there are under which names, and their rows. */
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "tool/source_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_LIMIT = 16 << 20, MAX_LAYERS = 1024 };

const char *tool_source_path(const struct tool_source *s)
{
    return s->path;
}

const struct io_file *tool_source_file(const struct tool_source *s)
{
    return s->file;
}

bool tool_source_is_gguf(const struct tool_source *s)
{
    return s->kind == SOURCE_GGUF;
}

bool tool_source_is_back(const struct tool_source *s)
{
    return s->o.back;
}

const struct io_meta *tool_source_meta(const struct tool_source *s)
{
    return s->meta ? s->meta : io_metadata(s->file);
}

size_t tool_source_n(const struct tool_source *s)
{
    return s->n;
}

const struct io_tensor *tool_source_at(const struct tool_source *s, size_t i)
{
    return &s->item[i].t;
}

const struct io_tensor *tool_source_find(const struct tool_source *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->item[i].name, name))
            return &s->item[i].t;
    return NULL;
}

uint32_t tool_source_type(const struct tool_source *s, size_t i)
{
    return s->item[i].written;
}

bool tool_source_is_coded(const struct tool_source *s, size_t i)
{
    return s->item[i].coded;
}

/* ---- the list ---- */

static ingle_status no_memory(const struct tool_source *s, struct err *err)
{
    return err_set(err, INGLE_NOMEM, "%s: no memory for the list of its tensors", s->path);
}

ingle_status tool_source_new_item(struct tool_source *s, const char *name, struct source_item **out,
                                  struct err *err)
{
    if (!mem_grow(&s->item, &s->cap, s->n + 1, sizeof *s->item))
        return no_memory(s, err);
    struct source_item *it = &s->item[s->n++];
    *it = (struct source_item){0};
    snprintf(it->name, sizeof it->name, "%s", name);
    *out = it;
    return INGLE_OK;
}

static ingle_status list_gguf(struct tool_source *s, struct err *err)
{
    struct source_item *it;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < io_n_tensors(s->file) && !st; i++) {
        const struct io_tensor *t = io_tensor_at(s->file, i);
        st = tool_source_new_item(s, t->name, &it, err);
        if (!st) {
            it->t = *t;
            it->written = t->type;
        }
    }
    return st;
}

/* Parts of the network that are computed in floats of 32 bits, whatever they have in the
 * checkpoint. */
static bool is_float(const struct source_item *it)
{
    static const char *const parts[] = {
        "_norm.",    "norm.weight", "ffn_gate_inp.",     "hc_",
        "sinks",     "_ape.",       "exp_probs_b",       "rope_freqs",
        "conv_base", "conf_proj",   "layer_output_scale"};
    if (it->t.n_dims < 2 || str_ends(it->name, ".scale") || str_ends(it->name, ".bias"))
        return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(it->name, parts[i]))
            return true;
    return false;
}

static bool is_integer(uint32_t type)
{
    return type == QUANT_I8 || type == QUANT_I16 || type == QUANT_I32 || type == QUANT_I64 ||
           type == QUANT_U8 || type == QUANT_BOOL;
}

/* How the rows of stack a are given, and written. */
static ingle_status choose_type(const struct tool_source *s, struct source_item *it,
                                struct err *err)
{
    const struct model_stack_info *a = &it->ia;
    const bool floats = a->type == QUANT_F32 || a->type == QUANT_F16 || a->type == QUANT_BF16;
    const bool halves = a->type == QUANT_Q4_0 || a->type == QUANT_Q5_0 || a->type == QUANT_Q8_0;
    it->how = SOURCE_SAME;
    it->t.type = it->written = a->type;
    if (a->type == QUANT_F64 || (floats && is_float(it) && a->type != QUANT_F32)) {
        it->how = SOURCE_FLOATS;
        it->t.type = it->written = QUANT_F32;
    } else if (is_integer(a->type)) {
        it->how = a->type == QUANT_I32 ? SOURCE_SAME : SOURCE_INTS;
        it->t.type = it->written = QUANT_I32;
    } else if (a->coded && a->type == QUANT_FP8_B32) { /* 4 bits of a number times a power of two */
        it->how = SOURCE_FLOATS;
        it->t.type = it->written = QUANT_BF16;
    } else if (a->coded && (a->type == QUANT_FP8_S32 || a->type == QUANT_F32)) {
        it->how = SOURCE_FLOATS;
        it->t.type = QUANT_F32;
        it->written = is_float(it) ? QUANT_F32 : QUANT_BF16;
    } else if (a->coded && halves) {
        it->how = a->factor ? SOURCE_SCALED : SOURCE_SAME;
        it->coded = true;
    } else if (a->type == QUANT_MXFP4 || a->type == QUANT_NVFP4) {
        it->coded = true;
    } else if (!floats) {
        return err_set(err, INGLE_UNSUP, "%s: tensor '%s' of type %s is not converted", s->path,
                       it->name, quant_info(a->type)->name);
    }
    return INGLE_OK;
}

static ingle_status sized(const struct tool_source *s, struct source_item *it, struct err *err)
{
    uint64_t rows = 1;
    for (uint32_t i = 1; i < it->t.n_dims; i++)
        if (!num_mul_u64(rows, it->t.ne[i], &rows))
            rows = 0;
    if (!rows || !quant_bytes(it->t.type, it->t.ne[0], rows, &it->t.n_bytes))
        return err_set(err, INGLE_FORMAT, "%s: tensor '%s' has no size as %s", s->path, it->name,
                       quant_info(it->t.type)->name);
    return INGLE_OK;
}

/* axes: of the tensor of the file, or 3 for a stack of tensors. */
static void set_shape(struct source_item *it, uint32_t axes)
{
    it->t.n_dims = axes ? axes : 1;
    for (uint32_t i = 0; i < IO_MAX_DIMS; i++)
        it->t.ne[i] = i < 3 ? it->ia.ne[i] : 1;
}

ingle_status tool_source_add_stack(struct tool_source *s, const char *from, const char *name,
                                   uint32_t axes, struct err *err)
{
    struct source_item *it;
    struct model_stack *a;
    ingle_status st = model_stack_open(&a, s->model, from, err);
    if (st)
        return st;
    st = tool_source_new_item(s, name, &it, err);
    if (st) {
        model_stack_close(a);
        return st;
    }
    it->a = a;
    model_stack_info(a, &it->ia);
    set_shape(it, axes);
    st = choose_type(s, it, err);
    return st ? st : sized(s, it, err);
}

ingle_status tool_source_add_constant(struct tool_source *s, const char *name, float *v, uint64_t n,
                                      struct err *err)
{
    struct source_item *it;
    const ingle_status st = v ? tool_source_new_item(s, name, &it, err) : no_memory(s, err);
    if (st) {
        mem_free(v);
        return st;
    }
    it->how = SOURCE_CONSTANT;
    it->constant = v;
    it->ia.ne[0] = n;
    it->ia.ne[1] = it->ia.ne[2] = 1;
    set_shape(it, 1);
    it->t.type = it->written = QUANT_F32;
    return sized(s, it, err);
}

/* NVFP4's factor of each matrix stands beside it. */
static ingle_status add_factors(struct tool_source *s, struct err *err)
{
    const size_t n = s->n;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < n && !st; i++) {
        char name[SOURCE_NAME + 8];
        const struct source_item *it = &s->item[i];
        if (it->t.type != QUANT_NVFP4 || it->how != SOURCE_SAME || !it->ia.factor)
            continue;
        snprintf(name, sizeof name, "%.*s.scale", (int)(strlen(it->name) - strlen(".weight")),
                 it->name);
        if (tool_source_find(s, name))
            return err_set(err, INGLE_UNSUP,
                           "%s: tensor '%s' is NVFP4 with a factor, and '%s' has another meaning",
                           s->path, it->name, name);
        const uint64_t k = it->ia.ne[2];
        float *v = mem_calloc((size_t)k, sizeof *v);
        if (v)
            memcpy(v, it->ia.factor, (size_t)k * sizeof *v);
        st = tool_source_add_constant(s, name, v, k, err);
    }
    return st;
}

/* Rows of two matrices after each other. */
static ingle_status add_joined(struct tool_source *s, const char *from_a, const char *from_b,
                               const char *name, struct err *err)
{
    struct source_item *it;
    ingle_status st = tool_source_add_stack(s, from_a, name, 2, err);
    if (st)
        return st;
    it = &s->item[s->n - 1];
    st = model_stack_open(&it->b, s->model, from_b, err);
    if (st)
        return st;
    model_stack_info(it->b, &it->ib);
    if (it->ia.ne[1] != it->ib.ne[1] || it->ia.ne[2] != 1 || it->ib.ne[2] != 1)
        return err_set(err, INGLE_FORMAT, "%s: '%s' and '%s' have %llu and %llu rows", s->path,
                       from_a, from_b, (unsigned long long)it->ia.ne[1],
                       (unsigned long long)it->ib.ne[1]);
    const bool narrow =
        it->ia.type != QUANT_F32 && it->ia.type != QUANT_F16 && it->ia.type == it->ib.type;
    it->how = SOURCE_JOINED;
    it->t.ne[0] = it->ia.ne[0] + it->ib.ne[0];
    it->t.type = narrow && it->ia.type != QUANT_FP8_S32 ? QUANT_BF16 : QUANT_F32;
    it->written = it->ia.coded ? QUANT_BF16 : it->t.type;
    it->coded = false;
    return sized(s, it, err);
}

/* ---- names ---- */

/* Belongs to a matrix of the same beginning. */
static bool is_companion(const char *name)
{
    static const char *const ends[] = {
        ".scale",          ".weight_scale",        ".weight_scale_inv",
        ".weight_scale_2", ".weight_global_scale", ".weight_zero_point",
        ".weight_shape"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (str_ends(name, ends[i]))
            return true;
    return false;
}

/* "X.weight" of "X.12.weight" and of "X.12.weight_packed" or "X.weight_packed"; whether it is a
 * member of a stack. */
static bool matrix_of(const char *name, char *out, size_t n_out)
{
    char base[SOURCE_NAME - 8];
    const bool packed = str_ends(name, ".weight_packed"), weight = str_ends(name, ".weight");
    snprintf(out, n_out, "%s", name);
    if (!packed && !weight)
        return false;
    snprintf(base, sizeof base, "%.*s",
             (int)(strlen(name) - strlen(packed ? ".weight_packed" : ".weight")), name);
    char *dot = strrchr(base, '.');
    const bool member =
        dot && strstr(base, "_exps.") && dot[1] && strspn(dot + 1, "0123456789") == strlen(dot + 1);
    if (member)
        *dot = 0;
    snprintf(out, n_out, "%s.weight", base);
    return member;
}

/* The drafter's part of a DeepSeek V4 checkpoint, in the spelling of llama.cpp.  False: it is not
 * of it. */
static bool mtp_name(const struct tool_source *s, const char *name, uint64_t n_layers, char *out,
                     size_t n_out)
{
    static const struct { const char *is, *becomes;
    } own[] = {{"enorm.weight", "nextn.enorm.weight"},
               {"hnorm.weight", "nextn.hnorm.weight"},
               {"norm.weight", "nextn.shared_head_norm.weight"}};
    static const char *const shared[] = {"token_embd.weight", "output.weight",
                                         "output_norm.weight"};
    unsigned i;
    int used = 0;
    if (sscanf(name, "mtp.%5u.%n", &i, &used) != 1 || !used) {
        for (size_t k = 0; k < sizeof shared / sizeof *shared; k++)
            if (!strcmp(name, shared[k])) {
                snprintf(out, n_out, "%s", name);
                return true;
            }
        return false;
    }
    if (s->kind == SOURCE_MTP_ONLY) {
        snprintf(out, n_out, "%s", name);
        return true;
    }
    if (!strncmp(name + used, "hc_head_", 8)) {
        snprintf(out, n_out, "output_hc%s", name + used + 7);
        return true;
    }
    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        if (!strcmp(name + used, own[k].is)) {
            snprintf(out, n_out, "blk.%llu.%s", (unsigned long long)(n_layers + i), own[k].becomes);
            return true;
        }
    snprintf(out, n_out, "blk.%llu.%s", (unsigned long long)(n_layers + i), name + used);
    return true;
}

/* Qwen 3's norm in front of the MLP has the name of Gemma's after attention. */
static void dflash_name(const struct tool_source *s, const char *name, char *out, size_t n_out)
{
    static const char is[] = "post_attention_norm.weight";
    char other[SOURCE_NAME];
    snprintf(out, n_out, "%s", name);
    if (!str_ends(name, is))
        return;
    snprintf(other, sizeof other, "%.*sffn_norm.weight", (int)(strlen(name) - (sizeof is - 1)),
             name);
    if (!model_find(s->model, other))
        snprintf(out, n_out, "%s", other);
}

/* The name in the file; false: the tensor is not of the part that is wanted. */
static bool file_name(const struct tool_source *s, const char *name, uint64_t n_layers, char *out,
                      size_t n_out)
{
    if (s->kind == SOURCE_MTP || s->kind == SOURCE_MTP_ONLY)
        return mtp_name(s, name, n_layers, out, n_out);
    if (s->kind == SOURCE_DFLASH) {
        dflash_name(s, name, out, n_out);
        return true;
    }
    snprintf(out, n_out, "%s", name);
    if (s->kind == SOURCE_DEEPSEEK4)
        return strncmp(name, "mtp.", 4) != 0;
    return true;
}

/* Whether a name is one that the family's renaming gives: others are towers, caches' scales and the
 * like. */
static bool is_known(const struct tool_source *s, const struct io_tensor *t, const char *name)
{
    char out[SOURCE_NAME];
    model_rename_fn *rename = s->draft && s->draft->rename ? s->draft->rename : s->family->rename;
    /* its draft block has names that stay */
    const bool v4 = s->family && !strcmp(s->family->arch, "deepseek4");
    return strcmp(t->name, name) != 0 || rename(t->name, out, sizeof out) ||
           (v4 && !s->draft && !strncmp(name, "mtp.", 4));
}

static ingle_status add_named(struct tool_source *s, const char *name, const struct io_tensor *t,
                              uint64_t n_layers, size_t *left_out, struct err *err)
{
    char from[SOURCE_NAME], to[SOURCE_NAME + 32], all[SOURCE_NAME + 32];
    const bool member = matrix_of(name, from, sizeof from);
    if (!file_name(s, from, n_layers, to, sizeof to)) {
        ++*left_out;
        return INGLE_OK;
    }
    snprintf(all, sizeof all, "%s", to);
    const char *const joined[] = {".e_proj.weight", ".h_proj.weight"};
    if (s->kind == SOURCE_MTP && str_ends(to, joined[1]))
        return INGLE_OK; /* with the other one */
    if (s->kind == SOURCE_MTP && str_ends(to, joined[0])) {
        char other[SOURCE_NAME];
        snprintf(other, sizeof other, "%.*s%s", (int)(strlen(from) - strlen(joined[0])), from,
                 joined[1]);
        snprintf(all, sizeof all, "%.*s.nextn.eh_proj.weight",
                 (int)(strlen(to) - strlen(joined[0])), to);
        return add_joined(s, from, other, all, err);
    }
    return tool_source_add_stack(s, from, all, member ? 3 : t->n_dims > 3 ? 4 : t->n_dims, err);
}

static ingle_status add_rope(struct tool_source *s, struct err *err)
{
    char key[80];
    const char *arch;
    size_t n_arch;
    uint64_t width = 0;
    double share = 1;
    ingle_status st = io_get_str(s->meta, "general.architecture", &arch, &n_arch, err);
    if (st)
        return st;
    snprintf(key, sizeof key, "%.*s.attention.key_length", (int)n_arch, arch);
    st = io_get_u64(s->meta, key, 2, 65536, &width, err);
    if (st)
        return st;
    struct json_object *text = NULL, *rope = NULL, *full = NULL, *v = NULL;
    struct json_object *in =
        json_object_object_get_ex(s->config, "text_config", &text) && text ? text : s->config;
    if (json_object_object_get_ex(in, "rope_parameters", &rope) &&
        json_object_object_get_ex(rope, "full_attention", &full))
        rope = full;
    if (rope && json_object_object_get_ex(rope, "rope_type", &v) &&
        !strcmp(json_object_get_string(v), "default"))
        return INGLE_OK;
    share = rope && json_object_object_get_ex(rope, "partial_rotary_factor", &v)
                ? json_object_get_double(v)
                : 0.25;
    const uint64_t half = width / 2,
                   turns = share > 0 && share <= 1 ? (uint64_t)((double)width * share / 2) : half;
    float *f = mem_calloc((size_t)half, sizeof *f);
    for (uint64_t i = 0; f && i < half; i++)
        f[i] = i < turns ? 1.0f : 1e30f;
    return tool_source_add_constant(s, "rope_freqs.weight", f, half, err);
}

/* Layers in the order of their numbers; what is in front of them, and what is after. */
static int place_of(const char *name, unsigned *layer)
{
    *layer = 0;
    if (sscanf(name, "blk.%5u.", layer) == 1 || sscanf(name, "mtp.%5u.", layer) == 1)
        return 1;
    return strncmp(name, "output", 6) == 0 ? 2 : 0;
}

static int item_order(const void *x, const void *y)
{
    const struct source_item *a = x, *b = y;
    unsigned la, lb;
    const int pa = place_of(a->name, &la), pb = place_of(b->name, &lb);
    if (pa != pb)
        return pa - pb;
    return la != lb ? (la < lb ? -1 : 1) : strcmp(a->name, b->name);
}

static ingle_status check_left(const struct tool_source *s, struct err *err)
{
    size_t n_left = 0;
    const char *first = NULL;
    for (size_t i = 0; i < model_n_names(s->model); i++) {
        const struct io_tensor *t;
        bool bound;
        const char *name = model_name_at(s->model, i, &t, &bound);
        if (bound || is_known(s, t, name))
            continue;
        first = first ? first : t->name;
        n_left++;
    }
    (void)err;
    if (n_left)
        report(s->sink, INGLE_REPORT_WARN, "convert", first,
               "%zu tensors with names that are no part of the model's text part are left out",
               n_left);
    return INGLE_OK;
}

static ingle_status list_checkpoint(struct tool_source *s, struct err *err)
{
    uint64_t n_layers = 0;
    size_t left_out = 0;
    ingle_status st = INGLE_OK;
    if (s->kind == SOURCE_MTP) { /* the key counts the blocks, too */
        uint64_t n_blocks = 0;
        st = io_get_u64(s->meta, "deepseek4.block_count", 0, MAX_LAYERS + 64, &n_layers, err);
        if (!st)
            st = io_get_u64(s->meta, "deepseek4.nextn_predict_layers", 0, n_layers, &n_blocks, err);
        n_layers -= n_blocks;
    }
    /* scales last: by then those of matrices are taken */
    for (int pass = 0; pass < 2 && !st; pass++)
        for (size_t i = 0; i < model_n_names(s->model) && !st; i++) {
            const struct io_tensor *t;
            bool bound;
            const char *name = model_name_at(s->model, i, &t, &bound);
            if (!bound && is_companion(name) == (pass == 1) && is_known(s, t, name))
                st = add_named(s, name, t, n_layers, &left_out, err);
        }
    if (!st)
        st = add_factors(s, err);
    if (!st && (s->kind == SOURCE_GEMMA4 || s->kind == SOURCE_ASSISTANT ||
                (s->kind == SOURCE_DFLASH && !strcmp(s->draft->kind, "dspark"))))
        st = add_rope(s, err);
    if (!st && !s->n)
        st = err_set(err, INGLE_FORMAT,
                     "%s: no tensor has a name of the model that config.json describes", s->path);
    if (!st && left_out && s->kind == SOURCE_DEEPSEEK4)
        report(s->sink, s->only_read ? INGLE_REPORT_NOTE : INGLE_REPORT_WARN,
               s->only_read ? "model" : "convert", s->path,
               "%zu tensors are a drafter's and are left out: 'ingle convert --mtp' (or --dspark) "
               "writes them to a file of their own",
               left_out);
    if (!st)
        st = check_left(s, err);
    if (st)
        return st;
    qsort(s->item, s->n, sizeof *s->item, item_order);
    return INGLE_OK;
}

/* ---- rows ---- */

static size_t aligned(size_t n)
{
    return (n + 63) / 64 * 64;
}

static uint64_t row_bytes(uint32_t type, uint64_t n)
{
    uint64_t bytes = 0;
    return quant_bytes(type, n, 1, &bytes) ? bytes : 0; /* it was asked before */
}

static size_t raw_bytes(const struct source_item *it, uint64_t n)
{
    const uint64_t a = row_bytes(it->ia.type, it->ia.ne[0]),
                   b = it->b ? row_bytes(it->ib.type, it->ib.ne[0]) : 0;
    return aligned((size_t)(n * (a > b ? a : b)));
}

size_t tool_source_work(const struct tool_source *s, size_t i, uint64_t n)
{
    const struct source_item *it = &s->item[i];
    if (!it->a)
        return tool_source_work_back(it, n);
    size_t stack = model_stack_work(it->a, (int64_t)n);
    if (it->b) {
        const size_t b = model_stack_work(it->b, (int64_t)n);
        stack = b > stack ? b : stack;
    }
    return aligned(stack) + raw_bytes(it, n) +
           2 * aligned((size_t)(n * it->t.ne[0]) * sizeof(float));
}

/* floats [n][width] as rows of the type. */
static bool put_floats(uint32_t type, const float *x, size_t n, void *to)
{
    if (type == QUANT_F32) {
        memcpy(to, x, n * sizeof *x);
        return true;
    }
    uint16_t *out = to;
    bool exact = true;
    for (size_t i = 0; i < n; i++) {
        const uint16_t b = quant_f32_to_bf16(x[i]);
        const float back = quant_bf16_to_f32(b);
        exact = exact && !(back < x[i]) && !(back > x[i]);
        memcpy(&out[i], &b, sizeof b);
    }
    return exact;
}

static void multiply(float *x, uint64_t n, const struct model_stack_info *info, uint64_t row)
{
    const float f = info->factor ? info->factor[row / info->ne[1]] : 1;
    for (uint64_t i = 0; i < n && info->factor; i++)
        x[i] *= f;
}

static ingle_status stack_floats(const struct model_stack *k, const struct model_stack_info *info,
                                 uint64_t row, uint64_t n, void *work, void *raw, float *x,
                                 bool *rounded, struct err *err)
{
    const ingle_status st = model_stack_rows(k, (int64_t)row, (int64_t)n, work, raw, rounded, err);
    if (st)
        return st;
    quant_decode(info->type, raw, x, (size_t)(n * info->ne[0]));
    multiply(x, n * info->ne[0], info, row);
    return INGLE_OK;
}

static ingle_status put_ints(const struct tool_source *s, const struct source_item *it,
                             const void *raw, uint64_t n, int32_t *to, struct err *err)
{
    const uint64_t count = n * it->ia.ne[0];
    for (uint64_t i = 0; i < count; i++) {
        int64_t v = 0;
        switch (it->ia.type) {
        case QUANT_I64: memcpy(&v, (const char *)raw + 8 * i, 8); break;
        case QUANT_I16: { int16_t w; memcpy(&w, (const char *)raw + 2 * i, 2); v = w; break; }
        case QUANT_I8: v = ((const int8_t *)raw)[i]; break;
        default: v = ((const uint8_t *)raw)[i];
        }
        if (v < INT32_MIN || v > INT32_MAX)
            return err_set(err, INGLE_FORMAT,
                           "%s: tensor '%s' has %lld at element %llu, allowed is what fits 32 bits",
                           s->path, it->name, (long long)v, (unsigned long long)i);
        const int32_t one = (int32_t)v;
        memcpy(&to[i], &one, sizeof one);
    }
    return INGLE_OK;
}

/* Scales of blocks times a factor. */
static bool scale_blocks(const struct source_item *it, uint64_t row, uint64_t n, unsigned char *to)
{
    const struct quant_info *q = quant_info(it->t.type);
    const uint64_t blocks = n * it->t.ne[0] / q->n;
    const float f = it->ia.factor[row / it->ia.ne[1]];
    bool exact = true;
    for (uint64_t i = 0; i < blocks; i++, to += q->n_bytes) {
        uint16_t d;
        memcpy(&d, to, sizeof d);
        const float want = quant_f16_to_f32(d) * f;
        d = quant_f32_to_f16(want);
        const float got = quant_f16_to_f32(d);
        exact = exact && !(got < want) && !(got > want);
        memcpy(to, &d, sizeof d);
    }
    return exact;
}

static ingle_status joined_rows(struct tool_source *s, const struct source_item *it, uint64_t row,
                                uint64_t n, char *work, char *raw, float *x, float *y, void *to,
                                struct err *err)
{
    const uint64_t a = it->ia.ne[0], b = it->ib.ne[0];
    bool rounded = false;
    ingle_status st = stack_floats(it->a, &it->ia, row, n, work, raw, y, &rounded, err);
    for (uint64_t i = 0; i < n && !st; i++)
        memcpy(x + i * (a + b), y + i * a, a * sizeof *x);
    if (!st)
        st = stack_floats(it->b, &it->ib, row, n, work, raw, y, &rounded, err);
    for (uint64_t i = 0; i < n && !st; i++)
        memcpy(x + i * (a + b) + a, y + i * b, b * sizeof *x);
    if (!st && (!put_floats(it->t.type, x, (size_t)(n * (a + b)), to) || rounded))
        atomic_store(&s->rounded, true);
    return st;
}

ingle_status tool_source_rows(struct tool_source *s, size_t i, uint64_t row, uint64_t n, void *work,
                              void *to, struct err *err)
{
    struct source_item *it = &s->item[i];
    const uint64_t one = row_bytes(it->t.type, it->t.ne[0]);
    bool rounded = false, exact = true;
    if (it->how == SOURCE_FILE)
        return io_read(s->file, &it->t, row * one, to, (size_t)(n * one), err);
    if (it->how >= SOURCE_LONGS)
        return tool_source_rows_back(s, it, row, n, work, to, err);
    if (it->how == SOURCE_CONSTANT) {
        memcpy(to, (const char *)it->constant + row * one, (size_t)(n * one));
        return INGLE_OK;
    }
    char *const raw = (char *)work + tool_source_work(s, i, n) - raw_bytes(it, n) -
                      2 * aligned((size_t)(n * it->t.ne[0]) * sizeof(float));
    float *const x = (float *)(void *)(raw + raw_bytes(it, n)),
                 *const y = x + aligned((size_t)(n * it->t.ne[0]) * sizeof(float)) / sizeof *x;
    ingle_status st = INGLE_OK;
    switch (it->how) {
    case SOURCE_JOINED:
        return joined_rows(s, it, row, n, work, raw, x, y, to, err);
    case SOURCE_FLOATS:
        st = stack_floats(it->a, &it->ia, row, n, work, raw, x, &rounded, err);
        exact = st || put_floats(it->t.type, x, (size_t)(n * it->t.ne[0]), to);
        break;
    case SOURCE_INTS:
        st = model_stack_rows(it->a, (int64_t)row, (int64_t)n, work, raw, &rounded, err);
        st = st ? st : put_ints(s, it, raw, n, to, err);
        break;
    default:
        st = model_stack_rows(it->a, (int64_t)row, (int64_t)n, work, to, &rounded, err);
        exact = st || it->how != SOURCE_SCALED || scale_blocks(it, row, n, to);
    }
    if (rounded || !exact)
        atomic_store(&s->rounded, true);
    return st;
}

void tool_source_say(const struct tool_source *s)
{
    if (atomic_load(&s->rounded) && s->o.back)
        report(s->sink, INGLE_REPORT_WARN, "convert", s->path,
               "codes became BF16 and were rounded (--outtype f32 keeps their values)");
    else if (atomic_load(&s->rounded))
        report(s->sink, INGLE_REPORT_WARN, "convert", s->path,
               "some values or scales have no exact form in the file's types and were rounded");
}

/* ---- opening ---- */

static bool has_tensor(const struct io_file *f, model_rename_fn *rename, const char *want)
{
    char out[SOURCE_NAME];
    for (size_t i = 0; i < io_n_tensors(f); i++)
        if (rename(io_tensor_at(f, i)->name, out, sizeof out) && !strcmp(out, want))
            return true;
    return io_tensor_find(f, want) != NULL;
}

static ingle_status read_config(struct tool_source *s, struct err *err)
{
    char *text;
    size_t n;
    ingle_status st = io_side_file(s->file, "config.json", CONFIG_LIMIT, &text, &n, err);
    if (st == INGLE_NOTFOUND)
        return err_set(
            err, INGLE_NOTFOUND,
            "%s: there is no config.json beside the tensors, which says what model it is", s->path);
    if (st)
        return st;
    st = json_parse(text, n, NULL, &s->config, err);
    mem_free(text);
    if (st)
        return err_prefix(err, "%s: config.json", s->path), st;
    return json_object_is_type(s->config, json_type_object)
               ? INGLE_OK
               : err_set(err, INGLE_FORMAT, "%s: config.json is no object", s->path);
}

static const struct family *family_of(const struct tool_source *s)
{
    struct json_object *v = NULL;
    return json_object_object_get_ex(s->config, "model_type", &v) && v
               ? family_by_hf_type(json_object_get_string(v))
               : NULL;
}

/* What the checkpoint is, and which part of it is wanted. */
static ingle_status find_kind(struct tool_source *s, struct err *err)
{
    static const struct { const char *draft; enum source_kind kind;
    } kinds[] = {{"mtp", SOURCE_ASSISTANT},
                 {"dflash", SOURCE_DFLASH},
                 {"dflash2", SOURCE_DFLASH},
                 {"dspark", SOURCE_DFLASH}};
    s->family = family_of(s);
    s->draft = family_draft_of(s->family, NULL, NULL, s->config);
    /* a model, whoever drafts with it */
    if (s->draft && s->family && !strcmp(s->draft->kind, "model"))
        s->draft = NULL;
    const bool v4 = s->family && !strcmp(s->family->arch, "deepseek4");
    const bool main = s->family && has_tensor(s->file, s->family->rename, "blk.0.attn_norm.weight");
    const bool stages = v4 && s->draft && !strcmp(s->draft->kind, "dspark");
    if (s->o.part == TOOL_SOURCE_DSPARK && !stages)
        return err_set(err, INGLE_ARG, "%s: config.json describes no DSpark stages of DeepSeek V4",
                       s->path);
    if (s->o.part == TOOL_SOURCE_MTP &&
        (!v4 || !has_tensor(s->file, s->family->rename, "mtp.0.e_proj.weight")))
        return err_set(err, INGLE_ARG, "%s: has no draft block 'mtp.0' of DeepSeek V4", s->path);
    if (stages && (s->o.part == TOOL_SOURCE_DSPARK || !main)) {
        s->kind = SOURCE_DSPARK4;
        return INGLE_OK;
    }
    if (s->draft && !stages) {
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(kinds[i].draft, s->draft->kind))
                s->kind = kinds[i].kind;
        if (s->kind == SOURCE_GGUF)
            return err_set(err, INGLE_UNSUP, "%s: drafters of kind '%s' are not converted", s->path,
                           s->draft->kind);
        return INGLE_OK;
    }
    s->draft = NULL;
    if (!s->family) {
        struct json_object *v = NULL;
        json_object_object_get_ex(s->config, "model_type", &v);
        return err_set(
            err, INGLE_UNSUP,
            "%s: config.json: 'model_type' is '%.60s', supported are %s and drafters of them",
            s->path, v ? json_object_get_string(v) : "missing", family_names());
    }
    s->kind = !v4 ? SOURCE_GEMMA4 : s->o.part == TOOL_SOURCE_MTP ? SOURCE_MTP : SOURCE_DEEPSEEK4;
    const bool block = v4 && has_tensor(s->file, s->family->rename, "mtp.0.e_proj.weight");
    if (block && !main)
        s->kind = has_tensor(s->file, s->family->rename, "token_embd.weight") ? SOURCE_MTP
                                                                              : SOURCE_MTP_ONLY;
    return INGLE_OK;
}

/* config.json may say that the head is a matrix of its own, as 'ingle run' asks, too. */
static ingle_status check_head(const struct tool_source *s, struct err *err)
{
    struct json_object *text = NULL, *v = NULL;
    bool embed = false, head = false;
    for (size_t i = 0; i < s->n; i++) {
        embed = embed || !strcmp(s->item[i].name, "token_embd.weight");
        head = head || !strcmp(s->item[i].name, "output.weight");
    }
    if (s->kind != SOURCE_GEMMA4 || !embed || head)
        return INGLE_OK;
    if (!(json_object_object_get_ex(s->config, "text_config", &text) &&
          json_object_object_get_ex(text, "tie_word_embeddings", &v)))
        (void)json_object_object_get_ex(s->config, "tie_word_embeddings", &v);
    if (!json_object_is_type(v, json_type_boolean) || json_object_get_boolean(v))
        return INGLE_OK;
    return err_set(
        err, INGLE_FORMAT,
        "%s: config.json: 'tie_word_embeddings' is false, but there is no tensor 'lm_head.weight'",
        s->path);
}

static ingle_status open_checkpoint(struct tool_source *s, struct err *err)
{
    ingle_status st = read_config(s, err);
    if (!st && s->o.part != TOOL_SOURCE_TOWER)
        st = find_kind(s, err);
    if (st)
        return st;
    s->meta = io_meta_create();
    if (!s->meta || io_meta_set_name(s->meta, s->path))
        return no_memory(s, err);
    if (s->o.part == TOOL_SOURCE_TOWER)
        return tool_source_list_tower(s, err);
    st = tool_source_keys(s, err);
    if (!st)
        st = model_create(&s->model, s->file, NULL,
                          s->draft && s->draft->rename ? s->draft->rename : s->family->rename,
                          s->sink, err);
    if (!st)
        st = model_read_scheme(s->model, s->config, err);
    if (!st)
        st = list_checkpoint(s, err);
    return st ? st : check_head(s, err);
}

/* A folder without safetensors: what is there instead. */
static void name_pickle(const char *path, struct err *err)
{
    static const char *const names[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                        "consolidated.00.pth"};
    struct stat is;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[4096];
        if ((size_t)snprintf(file, sizeof file, "%s/%s", path, names[i]) < sizeof file &&
            stat(file, &is) == 0) {
            (void)err_set(err, INGLE_UNSUP,
                          "%s: are weights in a pickle, which may run code and is not read: "
                          "convert them to safetensors",
                          file);
            return;
        }
    }
}

ingle_status tool_source_open(struct tool_source **out, const char *path,
                              const struct tool_source_options *o, const struct report_sink *sink,
                              struct err *err)
{
    struct tool_source *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "%s: no memory to open it", path);
    s->path = path;
    s->sink = sink;
    if (o)
        s->o = *o;
    s->only_read = !o;
    atomic_init(&s->rounded, false);
    ingle_status st = io_open(&s->file, path, sink, err);
    if (st)
        name_pickle(path, err);
    const bool gguf = !st && io_kind(s->file) == IO_GGUF;
    const char *type;
    size_t n_type;
    if (gguf && !io_get_str(io_metadata(s->file), "general.type", &type, &n_type, NULL) &&
        n_type == 7 && !memcmp(type, "imatrix", 7))
        st = err_set(
            err, INGLE_ARG,
            "%s: is a file of importance, not a model: 'ingle quantize' takes it as --imatrix",
            path);
    if (st)
        ;
    else if (s->o.back)
        st = gguf ? tool_source_list_back(s, err)
                  : err_set(err, INGLE_ARG, "%s: is a checkpoint already", path);
    else
        st = gguf ? list_gguf(s, err) : open_checkpoint(s, err);
    for (size_t i = 0; i < s->n; i++)
        s->item[i].t.name = s->item[i].name;
    if (st)
        tool_source_close(s);
    else
        *out = s;
    return st;
}

void tool_source_close(struct tool_source *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        model_stack_close(s->item[i].a);
        model_stack_close(s->item[i].b);
        mem_free(s->item[i].constant);
    }
    mem_free(s->item);
    model_free(s->model);
    io_meta_free(s->meta);
    json_object_put(s->config);
    io_close(s->file);
    mem_free(s);
}

static bool is_ours(const char *key)
{
    return strcmp(key, "general.file_type") == 0 ||
           strcmp(key, "general.quantization_version") == 0 || strncmp(key, "split.", 6) == 0 ||
           strcmp(key, "quantize.imatrix.file") == 0;
}

ingle_status tool_source_head(const struct tool_source *s, struct io_gguf *w, struct err *err)
{
    const struct io_meta *meta = tool_source_meta(s);
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < io_meta_count(meta) && !st; i++) {
        const struct io_value *v = io_meta_at(meta, i);
        if (s->meta)
            st = io_gguf_narrow(w, v, err);
        else if (!is_ours(v->key))
            st = io_gguf_value(w, v, err);
    }
    return st || !s->meta || s->kind == SOURCE_TOWER ? st : tool_source_vocab(s, w, err);
}
