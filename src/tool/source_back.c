/* SPDX-License-Identifier: Apache-2.0 */
/* source_back - the tensors of a GGUF file under the names of a checkpoint, in types that
 * safetensors has. */
#include "base/output.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "tool/source_impl.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FP4_BLOCK = 32, NVFP4_GROUP = 16, NVFP4_SCALES = 4, MAX_EXPERTS = 4096 };

static bool is_plain(uint32_t type)
{
    return type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16;
}

static bool is_v4(const struct tool_source *s)
{
    return s->family && !strcmp(s->family->arch, "deepseek4");
}

/* A name of the file in a checkpoint. */
static bool hf_name(const struct tool_source *s, const char *usual, char *out, size_t n_out)
{
    return s->draft ? s->draft->hf_name(s->file, usual, out, n_out)
                    : s->family->hf_name(usual, out, n_out);
}

/* The type of a matrix that is no table; sets s->rounded where values may not fit. */
static uint32_t float_type(struct tool_source *s, const struct io_tensor *t)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {{"f32", QUANT_F32}, {"f16", QUANT_F16}, {"bf16", QUANT_BF16}};
    uint32_t requested = 0;
    bool is_requested = false;
    for (size_t i = 0; s->o.back_type && i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, s->o.back_type)) {
            requested = types[i].type;
            is_requested = true;
        }
    const uint32_t type = is_requested        ? requested
                          : is_plain(t->type) ? t->type
                                              : (uint32_t)QUANT_BF16;
    const bool narrow =
        type != QUANT_F32 && type != t->type && !(type == QUANT_BF16 && t->type == QUANT_MXFP4);
    if (narrow && !is_requested)
        atomic_store(&s->rounded, true);
    return type;
}

/* Parts that are computed in floats of 32 bits keep them. */
static bool stays(const struct io_tensor *t)
{
    static const char *const parts[] = {"hc_", "sinks", "_ape.", "exp_probs_b"};
    if (t->type != QUANT_F32)
        return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(t->name, parts[i]))
            return true;
    return t->n_dims < 2;
}

static ingle_status add(struct tool_source *s, const char *name, const struct io_tensor *from,
                        uint32_t type, enum source_how how, struct source_item **out,
                        struct err *err)
{
    struct source_item *it;
    const ingle_status st = tool_source_new_item(s, name, &it, err);
    if (st)
        return st;
    it->t = it->from = *from;
    it->how = how;
    it->written = type;
    *out = it;
    return INGLE_OK;
}

static ingle_status sized(struct source_item *it, struct err *err)
{
    uint64_t rows = 1;
    for (uint32_t i = 1; i < it->t.n_dims; i++)
        rows *= it->t.ne[i]; /* the reader has checked the product */
    if (!quant_bytes(it->t.type, it->t.ne[0], rows, &it->t.n_bytes))
        return err_set(err, INGLE_FORMAT, "tensor '%s' has no size as %s", it->name,
                       quant_info(it->t.type)->name);
    return INGLE_OK;
}

/* MXFP4 as a checkpoint has it: "X.weight" of two elements a byte, and "X.scale". */
static ingle_status add_fp4(struct tool_source *s, const char *name, const struct io_tensor *from,
                            struct err *err)
{
    struct source_item *it;
    char scale[SOURCE_NAME];
    if (from->ne[0] % FP4_BLOCK)
        return err_set(err, INGLE_FORMAT,
                       "%s: tensor '%s' has rows of %llu elements, no whole blocks", s->path,
                       from->name, (unsigned long long)from->ne[0]);
    ingle_status st = add(s, name, from, QUANT_I8, SOURCE_FP4_CODES, &it, err);
    if (st)
        return st;
    it->t.type = QUANT_I8;
    it->t.ne[0] = from->ne[0] / 2;
    st = sized(it, err);
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(name) - strlen(".weight")), name);
    if (!st)
        st = add(s, scale, from, QUANT_E8M0, SOURCE_FP4_SCALES, &it, err);
    if (st)
        return st;
    it->t.type = QUANT_E8M0;
    it->t.ne[0] = from->ne[0] / FP4_BLOCK;
    return sized(it, err);
}

/* The factors of an NVFP4 tensor, "X.scale" beside "X.weight", or the other way round; NULL: there
 * are none. */
static const struct io_tensor *sibling(const struct tool_source *s, const char *name,
                                       const char *end, const char *other_end)
{
    char other[2 * SOURCE_NAME];
    const size_t n = strlen(name);
    if (!str_ends(name, end) || n >= SOURCE_NAME)
        return NULL;
    snprintf(other, sizeof other, "%.*s%s", (int)(n - strlen(end)), name, other_end);
    return io_tensor_find(s->file, other);
}

static ingle_status read_factor(const struct tool_source *s, const struct io_tensor *from,
                                uint64_t member, float *out, struct err *err)
{
    const struct io_tensor *t = sibling(s, from->name, ".weight", ".scale");
    *out = 1;
    if (!t)
        return INGLE_OK;
    if (t->type != QUANT_F32 || member >= t->n_bytes / sizeof *out)
        return err_set(err, INGLE_FORMAT,
                       "%s: tensor '%s' has type %s and %llu bytes, expected a float of F32 for "
                       "each matrix of '%s'",
                       s->path, t->name, quant_info(t->type)->name, (unsigned long long)t->n_bytes,
                       from->name);
    return io_read(s->file, t, member * sizeof *out, out, sizeof *out, err);
}

/* NVFP4 as ModelOpt has it: "X.weight" of two elements a byte, "X.weight_scale" and the factor
 * "X.weight_scale_2". member: the number of the matrix in from's tensor. */
static ingle_status add_nvfp4(struct tool_source *s, const char *name, const struct io_tensor *from,
                              uint64_t member, struct err *err)
{
    struct source_item *it;
    char side[SOURCE_NAME + 16];
    float factor;
    if (s->o.back_type)
        return err_set(err, INGLE_UNSUP,
                       "%s: tensor '%s' is NVFP4, which stays as it is: without --outtype", s->path,
                       from->name);
    if (!str_ends(name, ".weight") || strlen(name) + strlen("_scale_2") >= SOURCE_NAME)
        return err_set(err, INGLE_UNSUP, "%s: tensor '%s' of NVFP4 has no name in a checkpoint",
                       s->path, from->name);
    ingle_status st = read_factor(s, from, member, &factor, err);
    if (!st)
        st = add(s, name, from, QUANT_U8, SOURCE_FP4_CODES, &it, err);
    if (st)
        return st;
    it->t.type = QUANT_U8;
    it->t.ne[0] = from->ne[0] / 2;
    st = sized(it, err);
    snprintf(side, sizeof side, "%s_scale", name);
    if (!st)
        st = add(s, side, from, QUANT_FP8_E4M3, SOURCE_FP4_SCALES, &it, err);
    if (st)
        return st;
    it->t.type = QUANT_FP8_E4M3;
    it->t.ne[0] = from->ne[0] / NVFP4_GROUP;
    st = sized(it, err);
    snprintf(side, sizeof side, "%s_scale_2", name);
    float *v = st ? NULL : mem_calloc(1, sizeof *v);
    if (v)
        *v = factor;
    return st ? st : tool_source_add_constant(s, side, v, 1, err);
}

/* member: the number of the matrix in a stack. */
static ingle_status add_matrix(struct tool_source *s, const char *name,
                               const struct io_tensor *from, uint64_t member, struct err *err)
{
    struct source_item *it;
    if (strlen(name) >= SOURCE_NAME - 1)
        return err_set(err, INGLE_FORMAT, "%s: tensor '%s' has too long a name", s->path,
                       from->name);
    if (from->type == QUANT_NVFP4)
        return add_nvfp4(s, name, from, member, err);
    if (from->type == QUANT_MXFP4 && is_v4(s) && strstr(from->name, "_exps") && !s->o.back_type)
        return add_fp4(s, name, from, err);
    if (from->type == QUANT_I32) {
        const bool table = str_ends(name, "tid2eid") || str_ends(name, "token_ordering");
        const ingle_status st = add(s, name, from, table ? QUANT_I64 : QUANT_I32,
                                    table ? SOURCE_LONGS : SOURCE_FILE, &it, err);
        if (st || !table)
            return st;
        it->t.type = QUANT_I64;
        return sized(it, err);
    }
    if (!is_plain(from->type) && !quant_info(from->type)->quantised)
        return err_set(err, INGLE_UNSUP, "%s: tensor '%s' of type %s is not converted", s->path,
                       from->name, quant_info(from->type)->name);
    return add(s, name, from, stays(from) ? from->type : float_type(s, from), SOURCE_FILE, &it,
               err);
}

/* A stack of experts as tensors of their own. */
static ingle_status add_members(struct tool_source *s, const struct io_tensor *t, const char *usual,
                                struct err *err)
{
    const uint64_t n = t->ne[2];
    ingle_status st = INGLE_OK;
    if (t->n_dims != 3 || !n || n > MAX_EXPERTS || !str_ends(usual, ".weight"))
        return err_set(err, INGLE_UNSUP, "%s: tensor '%s' has no name in a checkpoint", s->path,
                       t->name);
    for (uint64_t i = 0; i < n && !st; i++) {
        char member[SOURCE_NAME + 16], name[SOURCE_NAME];
        struct io_tensor one = *t;
        snprintf(member, sizeof member, "%.*s.%llu.weight",
                 (int)(strlen(usual) - strlen(".weight")), usual, (unsigned long long)i);
        if (!hf_name(s, member, name, sizeof name))
            return err_set(err, INGLE_UNSUP, "%s: tensor '%s' has no name in a checkpoint", s->path,
                           t->name);
        one.n_dims = 2;
        one.ne[2] = 1;
        one.n_bytes = t->n_bytes / n;
        one.offset = t->offset + i * one.n_bytes;
        st = add_matrix(s, name, &one, i, err);
    }
    return st;
}

static const char eh_proj[] = ".nextn.eh_proj.weight";

/* The projections of a draft block, which stand side by side in each row. */
static ingle_status add_halves(struct tool_source *s, const struct io_tensor *t, const char *usual,
                               struct err *err)
{
    static const char *const parts[] = {"e_proj", "h_proj"};
    ingle_status st = INGLE_OK;
    if ((!is_plain(t->type) && !quant_info(t->type)->quantised) || t->n_dims != 2 || t->ne[0] % 2 ||
        t->ne[0] / 2 % quant_info(t->type)->n)
        return err_set(err, INGLE_UNSUP,
                       "%s: tensor '%s' has rows of %llu elements of %s, no two whole parts",
                       s->path, t->name, (unsigned long long)t->ne[0], quant_info(t->type)->name);
    for (int i = 0; i < 2 && !st; i++) {
        char member[SOURCE_NAME + 16], name[SOURCE_NAME];
        struct source_item *it;
        snprintf(member, sizeof member, "%.*s.nextn.%s.weight",
                 (int)(strlen(usual) - strlen(eh_proj)), usual, parts[i]);
        if (!hf_name(s, member, name, sizeof name))
            return err_set(err, INGLE_UNSUP, "%s: tensor '%s' has no name in a checkpoint", s->path,
                           t->name);
        st = add(s, name, t, float_type(s, t), i ? SOURCE_RIGHT : SOURCE_LEFT, &it, err);
        if (st)
            return st;
        it->t.ne[0] /= 2;
        st = sized(it, err);
    }
    return st;
}

static ingle_status add_tensor(struct tool_source *s, const struct io_tensor *t, struct err *err)
{
    char usual[SOURCE_NAME], name[SOURCE_NAME];
    struct io_tensor flat = *t;
    if (!strcmp(t->name, "rope_freqs.weight"))
        return INGLE_OK; /* config.json says it */
    model_rename_fn *alias = s->draft ? s->draft->alias : s->family->alias;
    if (!alias || !alias(t->name, usual, sizeof usual))
        snprintf(usual, sizeof usual, "%s", t->name);
    const struct io_tensor *whose = sibling(s, t->name, ".scale", ".weight");
    if (whose && whose->type == QUANT_NVFP4)
        return INGLE_OK; /* goes with it */
    if (s->draft && str_ends(usual, eh_proj))
        return add_halves(s, t, usual, err);
    if (!hf_name(s, usual, name, sizeof name))
        return add_members(s, t, usual, err);
    if (is_v4(s) && t->n_dims == 3) { /* groups of the output matrix: rows of one */
        flat.n_dims = 2;
        flat.ne[1] *= flat.ne[2];
        flat.ne[2] = 1;
    }
    return add_matrix(s, name, &flat, 0, err);
}

/* Which family and drafter it is.  A drafter of blocks has the words of its target. */
static ingle_status find_draft(struct tool_source *s, const char *arch, struct err *err)
{
    const struct io_meta *meta = io_metadata(s->file);
    const char *words;
    size_t n;
    uint64_t blocks;
    s->family = family_by_arch(arch);
    ingle_status st =
        model_create(&s->model, s->file, NULL, s->family ? s->family->alias : NULL, s->sink, err);
    if (st)
        return st;
    s->draft = family_draft_of(s->family, s->model, meta, NULL);
    const bool v4 = is_v4(s);
    const bool block =
        v4 && !io_get_u64(meta, "deepseek4.nextn_predict_layers", 1, 64, &blocks, NULL);
    if (s->draft && (!s->draft->hf_name || (v4 && !block)))
        s->draft = NULL;
    if (block && (!s->draft || model_find(s->model, "blk.0.attn_norm.weight")))
        return err_set(err, INGLE_UNSUP,
                       "%s: has a draft block beside the model's layers: a checkpoint is made of "
                       "one or the other",
                       s->path);
    if (s->draft && !s->family) {
        const bool gpt2 = !io_get_str(meta, "tokenizer.ggml.model", &words, &n, NULL) && n == 4 &&
                          !memcmp(words, "gpt2", 4);
        s->family = family_by_arch(gpt2 ? "deepseek4" : "gemma4");
    }
    return INGLE_OK;
}

ingle_status tool_source_list_back(struct tool_source *s, struct err *err)
{
    const char *arch;
    size_t n;
    char word[64];
    ingle_status st = io_get_str(io_metadata(s->file), "general.architecture", &arch, &n, err);
    if (st)
        return st;
    snprintf(word, sizeof word, "%.*s", (int)(n < 60 ? n : 60), arch);
    st = find_draft(s, word, err);
    if (st)
        return st;
    if (!s->family || !s->family->hf_name)
        return err_set(
            err, INGLE_UNSUP,
            "%s: 'general.architecture' is '%s': checkpoints are made of %s, and their drafters",
            s->path, word, family_names());
    for (size_t i = 0; i < io_n_tensors(s->file) && !st; i++)
        st = add_tensor(s, io_tensor_at(s->file, i), err);
    for (size_t i = 0; i < s->n && !st; i++)
        s->item[i].t.name = s->item[i].name;
    return st;
}

/* ---- rows ---- */

static uint64_t from_row(const struct source_item *it)
{
    uint64_t bytes = 0;
    return quant_bytes(it->from.type, it->from.ne[0], 1, &bytes) ? bytes : 0;
}

size_t tool_source_work_back(const struct source_item *it, uint64_t n)
{
    const bool other = it->how >= SOURCE_LONGS;
    return other ? (size_t)(n * from_row(it)) : 0;
}

/* Of 2 n elements i and i + n share a byte; a checkpoint's are 2 i and 2 i + 1. */
static void put_codes(const unsigned char *q, int n, unsigned char *to)
{
    for (int i = 0; i < n / 2; i++) {
        to[i] = (unsigned char)((q[2 * i] & 15) | (q[2 * i + 1] & 15) << 4);
        to[i + n / 2] = (unsigned char)(q[2 * i] >> 4 | (q[2 * i + 1] & 0xF0));
    }
}

ingle_status tool_source_rows_back(const struct tool_source *s, const struct source_item *it,
                                   uint64_t row, uint64_t n, void *work, void *to, struct err *err)
{
    const uint64_t one = from_row(it), count = n * it->from.ne[0];
    const unsigned char *raw = work;
    const ingle_status st = io_read(s->file, &it->from, row * one, work, (size_t)(n * one), err);
    if (st)
        return st;
    const struct quant_info *q = quant_info(it->from.type);
    if (it->how == SOURCE_LONGS) {
        for (uint64_t i = 0; i < count; i++) {
            int32_t v;
            memcpy(&v, raw + 4 * i, sizeof v);
            const int64_t wide = v;
            memcpy((char *)to + 8 * i, &wide, sizeof wide);
        }
        return INGLE_OK;
    }
    if (it->how == SOURCE_LEFT || it->how == SOURCE_RIGHT) {
        for (uint64_t r = 0; r < n; r++)
            memcpy((char *)to + r * (one / 2),
                   raw + r * one + (it->how == SOURCE_RIGHT ? one / 2 : 0), (size_t)(one / 2));
        return INGLE_OK;
    }
    const bool nv = it->from.type == QUANT_NVFP4;
    const int n_scales = nv ? NVFP4_SCALES : 1, half = nv ? NVFP4_GROUP / 2 : FP4_BLOCK / 2;
    unsigned char *at = to;
    for (uint64_t b = 0; b < count / q->n; b++, raw += q->n_bytes)
        for (int g = 0; g < n_scales; g++) {
            if (it->how == SOURCE_FP4_SCALES)
                *at++ = raw[g];
            else
                put_codes(raw + n_scales + g * half, half, at);
            at += it->how == SOURCE_FP4_SCALES ? 0 : half;
        }
    return INGLE_OK;
}

/* ---- what stands beside the weights ---- */

static ingle_status write_file(const struct tool_source *s, const char *dir, const char *name,
                               const struct str *text, struct err *err)
{
    struct str path;
    if (!text->n && str_ok(text))
        return INGLE_OK;
    str_init(&path);
    str_addf(&path, "%s/%s", dir, name);
    const struct output o = {
        .path = path.at, .kind = OUTPUT_SIDE, .guard = s->o.guard, .force = true};
    const ingle_status st = str_ok(text) && str_ok(&path)
                                ? output_save(&o, text->at, text->n, err)
                                : err_set(err, INGLE_NOMEM, "%s: no memory for %s", s->path, name);
    str_release(&path);
    return st;
}

static const char *const side_names[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                         "chat_template.jinja"};
enum { N_SIDE = sizeof side_names / sizeof *side_names };

const char *tool_source_side_name(size_t i)
{
    return i < N_SIDE ? side_names[i] : i == N_SIDE ? "model.safetensors.index.json" : NULL;
}

void tool_source_drop_side_files(const char *dir)
{
    for (size_t i = 0; i < N_SIDE; i++) {
        struct str path;
        str_init(&path);
        str_addf(&path, "%s/%s", dir, side_names[i]);
        if (str_ok(&path))
            (void)unlink(path.at);
        str_release(&path);
    }
}

ingle_status tool_source_side_files(const struct tool_source *s, const char *dir, struct err *err)
{
    struct str text[N_SIDE];
    const char *jinja;
    size_t n;
    for (size_t i = 0; i < N_SIDE; i++)
        str_init(&text[i]);
    ingle_status st = tool_source_config(s, &text[0], err);
    if (!st)
        st = tool_source_tokenizer(s, &text[1], &text[2], err);
    if (!st && !io_get_str(io_metadata(s->file), "tokenizer.chat_template", &jinja, &n, NULL))
        str_add(&text[3], jinja, n);
    for (size_t i = 0; i < N_SIDE && dir && !st; i++)
        st = write_file(s, dir, side_names[i], &text[i], err);
    if (!st && dir && !text[1].n)
        report(s->sink, INGLE_REPORT_WARN, "convert", s->path,
               "has no vocabulary: there is no tokenizer.json");
    if (st && dir)
        tool_source_drop_side_files(dir);
    for (size_t i = 0; i < N_SIDE; i++)
        str_release(&text[i]);
    return st;
}
