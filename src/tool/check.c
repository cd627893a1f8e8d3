/* SPDX-License-Identifier: Apache-2.0 */
/* check - whether a model file can be trusted: its form, every value, what model it is and what
 * differs from the published one. */
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/size.h"
#include "base/write.h"
#include "device/device.h"
#include "family/family.h"
#include "tower/tower.h"
#include "text/text.h"
#include "tool/source.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* FAR: a scale so many times off its siblings' is named */
enum { CHUNK = 1 << 18, MAX_LAYERS = 1024, FAR = 64 };

/* What a chunk of rows holds. */
struct part {
    uint64_t hash, zeros, bad; /* bad: elements that are no numbers */
    double square_sum, max_abs;
    ingle_status status;
    struct err err;
};

struct seen {
    uint64_t hash, n, zeros, bad;
    double rms, max_abs;
};

struct check {
    struct tool_source *s;
    struct pool *pool;
    const struct report_sink *sink;
    struct tool_check *out;
    struct str *text;
    bool json;
    struct seen *seen; /* [n] */
    /* the tensor at work */
    size_t i;
    uint64_t n_rows, rows_per_chunk, matrix_rows;
    struct part *part;
    struct err *err;
};

ATTR_PRINTF(3, 4) static void find(struct check *c, bool problem, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    *(problem ? &c->out->n_problems : &c->out->n_warnings) += 1;
    if (c->json) {
        write_open(c->text, '{');
        write_member(c->text, "level", problem ? "problem" : "warning");
        write_member(c->text, "text", line);
        write_close(c->text, '}');
    } else {
        str_adds(c->text, problem ? "problem: " : "warning: ");
        str_add_shown(c->text, line, strlen(line));
        str_addc(c->text, '\n');
    }
}

/* ---- values ---- */

static void add_values(struct part *p, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double v = fabs((double)x[i]);
        if (!isfinite(x[i])) {
            p->bad++;
            continue;
        }
        p->zeros += !(v > 0);
        p->square_sum += v * v;
        p->max_abs = v > p->max_abs ? v : p->max_abs;
    }
}

static void scan_chunk(void *arg, int64_t chunk, int worker)
{
    struct check *c = arg;
    struct part *p = &c->part[chunk];
    const struct io_tensor *t = tool_source_at(c->s, c->i);
    const size_t n = (size_t)t->ne[0];
    const uint64_t row_bytes = t->n_bytes / c->n_rows;
    (void)worker;
    uint64_t first = (uint64_t)chunk * c->rows_per_chunk;
    const uint64_t end =
        first + c->rows_per_chunk < c->n_rows ? first + c->rows_per_chunk : c->n_rows;
    unsigned char *raw = mem_alloc((size_t)((end - first) * row_bytes) + 1);
    void *work = mem_alloc(tool_source_work(c->s, c->i, end - first) + 1);
    float *x = mem_calloc((size_t)(end - first) * n, sizeof *x);
    if (!raw || !work || !x)
        p->status = err_set(&p->err, INGLE_NOMEM, "no memory to check tensor '%s'", t->name);
    while (first < end && !p->status) {
        const uint64_t left = c->matrix_rows - first % c->matrix_rows,
                       rows = left < end - first ? left : end - first;
        p->status = tool_source_rows(c->s, c->i, first, rows, work, raw, &p->err);
        if (!p->status) {
            p->hash = XXH3_64bits_withSeed(raw, (size_t)(rows * row_bytes), p->hash);
            quant_decode(t->type, raw, x, (size_t)rows * n);
            add_values(p, x, (size_t)rows * n);
        }
        first += rows;
    }
    mem_free(raw);
    mem_free(work);
    mem_free(x);
}

static ingle_status scan_tensor(struct check *c, struct err *err)
{
    const struct io_tensor *t = tool_source_at(c->s, c->i);
    struct seen *seen = &c->seen[c->i];
    c->n_rows = c->matrix_rows = t->n_dims > 1 ? t->ne[1] : 1;
    for (uint32_t k = 2; k < t->n_dims; k++)
        c->n_rows *= t->ne[k];
    c->rows_per_chunk = t->ne[0] >= CHUNK ? 1 : CHUNK / t->ne[0];
    const int64_t n = num_div_up((int64_t)c->n_rows, (int64_t)c->rows_per_chunk),
                  batch = 8 * (int64_t)pool_size(c->pool);
    c->part = mem_calloc((size_t)n, sizeof *c->part);
    ingle_status st =
        c->part ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory to check tensor '%s'", t->name);
    if (!st && n <= batch)
        pool_run(c->pool, n, scan_chunk, c);
    else if (!st)
        pool_run(c->pool, n, scan_chunk, c);
    double squares = 0;
    for (int64_t k = 0; k < n && !st; k++) {
        const struct part *p = &c->part[k];
        if (p->status) {
            st = p->status;
            if (err)
                *err = p->err;
        }
        seen->hash = XXH3_64bits_withSeed(&p->hash, sizeof p->hash, seen->hash);
        seen->zeros += p->zeros;
        seen->bad += p->bad;
        squares += p->square_sum;
        seen->max_abs = p->max_abs > seen->max_abs ? p->max_abs : seen->max_abs;
    }
    seen->n = c->n_rows * t->ne[0];
    seen->rms = seen->n ? sqrt(squares / (double)seen->n) : 0;
    mem_free(c->part);
    c->part = NULL;
    return st;
}

static void judge_tensor(struct check *c, size_t i)
{
    const struct io_tensor *t = tool_source_at(c->s, i);
    const struct seen *s = &c->seen[i];
    const bool integer =
        t->type == QUANT_I32 || t->type == QUANT_I64 || t->type == QUANT_I16 || t->type == QUANT_I8;
    if (s->bad)
        find(c, true, "tensor '%s' of %s has %llu elements that are no finite number", t->name,
             quant_info(t->type)->name, (unsigned long long)s->bad);
    if (integer)
        return;
    if (s->zeros == s->n && (t->n_dims > 1 || strstr(t->name, "norm")))
        find(c, true, "tensor '%s' is zero everywhere: part of the file is missing", t->name);
    else if (s->n >= 4096 && (double)s->zeros > 0.5 * (double)s->n && t->type != QUANT_TQ1_0 &&
             t->type != QUANT_TQ2_0)
        find(c, false, "tensor '%s' is zero in %.0f %% of its elements", t->name,
             100.0 * (double)s->zeros / (double)s->n);
}

/* "blk.3.ffn_down.weight" as "ffn_down.weight"; false: it is not of a layer. */
static bool of_layer(const char *name, const char **part)
{
    unsigned layer;
    int used = 0;
    if (sscanf(name, "blk.%5u.%n", &layer, &used) != 1 || !used)
        return false;
    *part = name + used;
    return true;
}

static int number_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of the root mean squares of the tensors of this name in all layers; 0: there are too
 * few. */
static double usual_rms(const struct check *c, const char *part)
{
    double v[MAX_LAYERS];
    size_t n = 0;
    const char *other;
    for (size_t i = 0; i < tool_source_n(c->s) && n < MAX_LAYERS; i++)
        if (of_layer(tool_source_at(c->s, i)->name, &other) && !strcmp(other, part) &&
            c->seen[i].rms > 0)
            v[n++] = c->seen[i].rms;
    if (n < 4)
        return 0;
    qsort(v, n, sizeof *v, number_order);
    return v[n / 2];
}

/* A matrix whose values are far larger or smaller than those of the same matrix in other layers. */
static void judge_scales(struct check *c)
{
    const char *part;
    for (size_t i = 0; i < tool_source_n(c->s); i++) {
        const struct io_tensor *t = tool_source_at(c->s, i);
        const double rms = c->seen[i].rms;
        if (t->n_dims < 2 || !of_layer(t->name, &part) || !(rms > 0) || strstr(part, "hc_") ||
            strstr(part, "tid2eid"))
            continue;
        const double usual = usual_rms(c, part);
        if (usual > 0 && (rms > FAR * usual || rms < usual / FAR))
            find(c, false,
                 "tensor '%s' has a root mean square of %.3g, in most layers it is %.3g: its "
                 "scales may be wrong",
                 t->name, rms, usual);
    }
}

static ingle_status scan(struct check *c, struct err *err)
{
    const size_t n = tool_source_n(c->s);
    double done = 0, all = 0;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < n; i++)
        all += (double)tool_source_at(c->s, i)->n_bytes;
    for (c->i = 0; c->i < n && !st; c->i++) {
        st = scan_tensor(c, err);
        if (!st)
            judge_tensor(c, c->i);
        done += (double)tool_source_at(c->s, c->i)->n_bytes;
        if (!st && report_progress(c->sink, "check", done, all))
            st = err_set(err, INGLE_CANCEL, "%s: stopped", tool_source_path(c->s));
    }
    if (st)
        return st;
    judge_scales(c);
    for (size_t i = 0; i < n; i++)
        c->out->sum = XXH3_64bits_withSeed(&c->seen[i].hash, sizeof c->seen[i].hash, c->out->sum);
    return INGLE_OK;
}

/* ---- which model ---- */

static uint64_t number(const struct io_meta *m, const char *arch, const char *key)
{
    char name[160];
    uint64_t v = 0;
    snprintf(name, sizeof name, "%s.%s", arch, key);
    return io_get_u64s(m, name, 1, 0, UINT64_MAX, &v, NULL) ? 0 : v;
}

static const struct { const char *arch, *name; uint64_t n_layers, n_embd, n_vocab;
} published[] = {{"gemma4", "Gemma 4 E2B", 35, 1536, 262144},
                 {"gemma4", "Gemma 4 E4B", 42, 2560, 262144},
                 {"gemma4", "Gemma 4 12B", 48, 3840, 262144},
                 {"gemma4", "Gemma 4 26B-A4B", 30, 2816, 262144},
                 {"gemma4", "Gemma 4 31B", 60, 5376, 262144},
                 {"deepseek4", "DeepSeek V4 Flash", 43, 4096, 129280},
                 {"deepseek4", "DeepSeek V4 Pro", 61, 7168, 129280}};

/* What the published models of a family have; key: after the architecture. */
static const struct { const char *arch, *key; double value;
} usual[] = {{"gemma4", "rope.freq_base", 1e6},
             {"gemma4", "rope.freq_base_swa", 1e4},
             {"gemma4", "final_logit_softcapping", 30},
             {"gemma4", "attention.key_length", 512},
             {"gemma4", "attention.key_length_swa", 256},
             {"gemma4", "attention.layer_norm_rms_epsilon", 1e-6},
             {"deepseek4", "rope.freq_base", 1e4},
             {"deepseek4", "attention.compress_rope_freq_base", 160000},
             {"deepseek4", "rope.scaling.factor", 16},
             {"deepseek4", "rope.scaling.original_context_length", 65536},
             {"deepseek4", "rope.scaling.yarn_beta_fast", 32},
             {"deepseek4", "rope.scaling.yarn_beta_slow", 1},
             {"deepseek4", "attention.sliding_window", 128},
             {"deepseek4", "attention.key_length", 512},
             {"deepseek4", "hyper_connection.count", 4},
             {"deepseek4", "hyper_connection.sinkhorn_iterations", 20},
             {"deepseek4", "expert_shared_count", 1},
             {"deepseek4", "attention.layer_norm_rms_epsilon", 1e-6},
             {"deepseek4", "hyper_connection.epsilon", 1e-6}};

/* Only models of a published shape have published values. */
static void compare_published(struct check *c, const struct io_meta *m, const char *arch)
{
    static const struct { const char *arch, *key; uint64_t id, other; } ids[] = {
        {"gemma4", "bos", 2, 2}, {"gemma4", "eos", 1, 106}, {"gemma4", "padding", 0, 0},
        {"deepseek4", "bos", 0, 0}, {"deepseek4", "eos", 1, 1}, {"deepseek4", "padding", 1, 2}};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        char key[160];
        double v;
        snprintf(key, sizeof key, "%s.%s", arch, usual[i].key);
        if (!strcmp(usual[i].arch, arch) && !io_get_f64(m, key, -1e30, 1e30, &v, NULL) &&
            fabs(v - usual[i].value) > 1e-6 * fabs(usual[i].value))
            find(c, false, "'%s' is %g, in the published model %g", key, v, usual[i].value);
    }
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char key[80];
        uint64_t v;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i].key);
        if (!strcmp(ids[i].arch, arch) && !io_get_u64(m, key, 0, UINT32_MAX, &v, NULL) &&
            v != ids[i].id && v != ids[i].other)
            find(c, false, "'%s' is %llu, in the published model %llu", key, (unsigned long long)v,
                 (unsigned long long)ids[i].id);
    }
}

static void say_chat(struct check *c, const struct io_meta *m, const char *arch)
{
    const char *jinja;
    size_t n;
    const bool gemma = strncmp(arch, "gemma4", 6) == 0;
    struct tool_check *o = c->out;
    char *side = NULL;
    if (!tool_source_is_gguf(c->s) &&
        !io_side_file(tool_source_file(c->s), "chat_template.jinja", 16 << 20, &side, &n, NULL))
        jinja = side;
    else if (io_get_str(m, "tokenizer.chat_template", &jinja, &n, NULL))
        return;
    const char *name =
        text_chat_template_name(gemma ? TEXT_CHAT_GEMMA4 : TEXT_CHAT_DEEPSEEK_V4, jinja, n);
    o->instruction = true;
    snprintf(o->chat, sizeof o->chat, "%s", name ? name : "unknown");
    if (!name)
        find(c, false,
             "the chat template (%zu bytes) is none of those that are known: prompts may differ "
             "from the template's",
             n);
    mem_free(side);
}

static void say_model(struct check *c)
{
    const struct io_meta *m = tool_source_meta(c->s);
    struct tool_check *o = c->out;
    const char *arch = NULL;
    size_t n = 0;
    if (io_get_str(m, "general.architecture", &arch, &n, NULL) || n >= sizeof o->arch) {
        find(c, true, "'general.architecture' is missing");
        return;
    }
    snprintf(o->arch, sizeof o->arch, "%.*s", (int)n, arch);
    const uint64_t n_layers = number(m, o->arch, "block_count"),
                   n_embd = number(m, o->arch, "embedding_length");
    const struct io_tensor *embed = tool_source_find(c->s, "token_embd.weight");
    snprintf(o->size, sizeof o->size, "unpublished shape: %llu layers of %llu",
             (unsigned long long)n_layers, (unsigned long long)n_embd);
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (!strcmp(published[i].arch, o->arch) && published[i].n_layers == n_layers &&
            published[i].n_embd == n_embd) {
            snprintf(o->size, sizeof o->size, "%s", published[i].name);
            o->published = true;
            if (embed && embed->ne[1] != published[i].n_vocab)
                find(c, false, "the embedding has %llu rows, in the published model %llu",
                     (unsigned long long)embed->ne[1], (unsigned long long)published[i].n_vocab);
        }
    if (!strcmp(o->arch, "clip"))
        return; /* bind_tower() says what it is */
    if (o->published)
        compare_published(c, m, o->arch);
    say_chat(c, m, o->arch);
    const struct io_value *tokens = io_meta_find(m, "tokenizer.ggml.tokens");
    if (tool_source_is_gguf(c->s) && embed && !tokens)
        find(c, false, "the file has no vocabulary");
    if (tokens && embed && tokens->kind == IO_ARRAY && tokens->n != embed->ne[1])
        find(c, true, "the vocabulary has %zu tokens, the embedding %llu rows", tokens->n,
             (unsigned long long)embed->ne[1]);
}

/* All shapes and hyper-parameters, by the family that would compute with them. */
static void bind_family(struct check *c)
{
    const struct family *f = family_by_arch(c->out->arch);
    struct device *d = NULL;
    struct model *m = NULL;
    struct io_file *file = NULL;
    struct family_info info;
    struct err err = {0};
    void *self = NULL;
    if (!f || !tool_source_is_gguf(c->s) || !tool_source_find(c->s, "blk.0.attn_norm.weight"))
        return;
    c->out->supported = true;
    ingle_status st =
        device_create(&d, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, &err);
    if (!st)
        st = io_open(&file, tool_source_path(c->s), NULL, &err);
    if (!st)
        st = model_create(&m, file, d, f->alias, NULL, &err);
    if (!st)
        st = f->bind(&self, m, io_metadata(file), &info, &err);
    if (!st)
        st = model_check_unused(m, &err);
    if (st)
        find(c, true, "%s", err.msg);
    f->free(self);
    model_free(m);
    io_close(file);
    device_free(d);
}

/* The same of encoders of pictures and sound: of an mmproj file, and beside a model's tensors. */
static void bind_tower(struct check *c)
{
    struct device *d = NULL;
    struct tower *t = NULL;
    struct str text;
    struct err err = {0};
    const char *path = tool_source_path(c->s);
    if (!tower_is_in(tool_source_file(c->s)) && strcmp(c->out->arch, "clip") != 0)
        return;
    ingle_status st =
        device_create(&d, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, &err);
    if (!st)
        st = tower_open(&t, path, &(struct tower_options){.device = d, .check = true}, &err);
    if (st)
        find(c, true, "%s", err.msg);
    str_init(&text);
    if (!st)
        tower_describe(t, &text);
    snprintf(c->out->encoders, sizeof c->out->encoders, "%s", text.at);
    str_release(&text);
    if (!strcmp(c->out->arch, "clip"))
        c->out->supported = !st;
    tower_close(t);
    device_free(d);
}

/* The line for people: what it is, then the counts. */
static void add_summary(const struct check *c, const char *path, const char *drafts)
{
    const struct tool_check *o = c->out;
    const bool projector = !strcmp(o->arch, "clip");
    str_addf(c->text, "%s: %s, %s%s%s; ", path, o->arch, projector ? "" : o->size,
             *o->encoders && !projector ? "; encoders: " : "", o->encoders);
    if (projector)
        str_adds(c->text, "encoders for a language model of that width");
    else if (drafts && !o->supported)
        str_addf(c->text, "a drafter: %s", drafts);
    else if (o->instruction)
        str_addf(c->text, "instruction model, chat template %s", o->chat);
    else
        str_adds(c->text, "no chat template: a base model, or it was left out");
    if (drafts && o->supported)
        str_addf(c->text, "; with a drafter: %s", drafts);
    str_addf(c->text,
             "; %zu tensors, %s in %zu file%s, sum %016llx: %zu problem%s, %zu warning%s\n",
             o->n_tensors, SIZE_OF(o->n_bytes), o->n_files, o->n_files == 1 ? "" : "s",
             (unsigned long long)o->sum, o->n_problems, o->n_problems == 1 ? "" : "s",
             o->n_warnings, o->n_warnings == 1 ? "" : "s");
}

static void add_json_summary(const struct check *c, const char *drafts)
{
    const struct tool_check *o = c->out;
    char sum[20];
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)o->sum);
    write_close(c->text, ']');
    write_member(c->text, "architecture", o->arch);
    write_member(c->text, "size", o->size);
    write_member_bool(c->text, "published", o->published);
    write_member_bool(c->text, "supported", o->supported);
    write_member_bool(c->text, "instruction", o->instruction);
    write_member(c->text, "chat", o->chat);
    if (*o->encoders)
        write_member(c->text, "encoders", o->encoders);
    if (drafts)
        write_member(c->text, "drafts", drafts);
    write_member_uint(c->text, "tensors", o->n_tensors);
    write_member_uint(c->text, "bytes", o->n_bytes);
    write_member_uint(c->text, "files", o->n_files);
    write_member(c->text, "sum", sum);
    write_member_uint(c->text, "problems", o->n_problems);
    write_member_uint(c->text, "warnings", o->n_warnings);
    write_close(c->text, '}');
    str_addc(c->text, '\n');
}

ingle_status tool_check(struct pool *p, const char *path, const char *drafts, bool json,
                        const struct report_sink *sink, struct tool_check *out, struct str *text,
                        struct err *err)
{
    struct check c = {.pool = p, .sink = sink, .out = out, .text = text, .json = json, .err = err};
    *out = (struct tool_check){0};
    if (json) {
        text->spaced = true;
        write_open(text, '{');
        write_key(text, "findings");
        write_open(text, '[');
    }
    ingle_status st = tool_source_open(&c.s, path, NULL, sink, err);
    if (!st) {
        out->n_tensors = tool_source_n(c.s);
        out->n_bytes = io_size(tool_source_file(c.s));
        out->n_files = io_n_files(tool_source_file(c.s));
        c.seen = mem_calloc(out->n_tensors + 1, sizeof *c.seen);
        if (!c.seen)
            st = err_set(err, INGLE_NOMEM, "%s: no memory for %zu tensors", path, out->n_tensors);
    } else if (st == INGLE_FORMAT || st == INGLE_UNSUP || st == INGLE_LIMIT) {
        /* a finding: that is what was asked */
        find(&c, true, "%s", err ? err->msg : "it cannot be read");
        str_adds(text, json ? "]}\n" : "");
        return INGLE_OK;
    }
    if (!st)
        say_model(&c);
    if (!st)
        bind_family(&c);
    if (!st)
        bind_tower(&c);
    if (!st)
        st = scan(&c, err);
    if (!st && json)
        add_json_summary(&c, drafts);
    else if (!st)
        add_summary(&c, path, drafts);
    mem_free(c.seen);
    tool_source_close(c.s);
    return st;
}
