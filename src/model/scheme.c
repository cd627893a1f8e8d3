/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheme - what a checkpoint's configuration says of how its weights are quantised: known or
 * refused by name before any tensor is looked at.  The tensors say the rest themselves; they
 * must agree with it.
 */
#include "base/mem.h"
#include "base/json.h"
#include "model/load.h"
#include "model/parts.h"
#include <stdio.h>
#include <string.h>

enum { MAX_GROUPS = 64, MAX_IGNORED = 65536, SIDE_LIMIT = 16 << 20, SAID = 48 };

/* One of config_groups. */
struct group {
    int64_t bits, size; /* size: columns of a scale, 0: not said, or another strategy */
    bool is_float, symmetric;
};

struct scheme {
    char method[SAID], file[32];
    struct group group[MAX_GROUPS];
    size_t n_groups;
    int64_t tile[2];
    char **ignored;
    size_t n_ignored;
    bool cache;
};

static const char works[] = "what is read: GGUF files, and checkpoints in BF16, F16 or F32, FP8 "
                            "(E4M3), compressed-tensors (int4, int8, FP8, NVFP4, MXFP4) "
                            "and ModelOpt (FP8, NVFP4)";

/* The text of a member; "" if it has none, or is no text. */
static const char *text(struct json_object *o, const char *key)
{
    struct json_object *v = json_member(o, key);
    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : "";
}

static bool is_one_of(const char *s, const char *const *list)
{
    while (*list && strcmp(*list, s) != 0)
        list++;
    return *list != NULL;
}

/* A reader of one configuration: where errors are said to be. */
struct reader {
    const struct io_file *file;
    const char *side; /* "config.json" */
    const char *key;  /* "quantization_config" */
    struct scheme *to;
    struct err *err;
};

static ingle_status refuse(const struct reader *r, const char *field, const char *value)
{
    return err_set(r->err, INGLE_UNSUP, "'%s': %s: '%s%s%s' is '%.60s', which is not read; %s",
                   io_path(r->file), r->side, r->key, *field ? "." : "", field, value, works);
}

/* ---- names that are left as they are ---- */

static ingle_status take_ignored(const struct reader *r, struct json_object *list)
{
    struct scheme *s = r->to;
    if (!json_object_is_type(list, json_type_array))
        return INGLE_OK;
    const size_t n = json_object_array_length(list);
    if (n > MAX_IGNORED - s->n_ignored)
        return err_set(
            r->err, INGLE_LIMIT,
            "'%s': %s: a list of modules that are not quantised has %zu entries, the limit is %d",
            io_path(r->file), r->side, n, MAX_IGNORED);
    if (!n)
        return INGLE_OK;
    char **all = mem_calloc(s->n_ignored + n, sizeof *all);
    if (!all)
        return err_set(r->err, INGLE_NOMEM, "no memory for %zu names of %s", n, r->side);
    if (s->n_ignored)
        memcpy(all, s->ignored, s->n_ignored * sizeof *all);
    mem_free(s->ignored);
    s->ignored = all;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(list, i));
        char *copy = mem_strdup(name ? name : "");
        if (!copy)
            return err_set(r->err, INGLE_NOMEM, "no memory for %zu names of %s", n, r->side);
        all[s->n_ignored++] = copy;
    }
    return INGLE_OK;
}

/* '*' is any text, '?' any character; steps are bounded by the product of both lengths. */
static bool matches(const char *glob, const char *s)
{
    const char *star = NULL, *again = NULL;
    while (*s) {
        if (*glob == '*') {
            star = glob++;
            again = s;
        } else if (*glob == *s || *glob == '?') {
            glob++;
            s++;
        } else if (star) {
            glob = star + 1;
            s = ++again;
        } else {
            return false;
        }
    }
    while (*glob == '*')
        glob++;
    return !*glob;
}

/* A regular expression of plain characters, '.', '.*' and '\.' as a glob, which matches from the
 * start on; false: it has more than that, and says nothing here. */
static bool plain_regex(const char *re, char *out, size_t n_out)
{
    size_t n = 0;
    bool ends = false;
    for (re += *re == '^'; *re; re++) {
        const bool any = re[0] == '.' && re[1] == '*', dot = re[0] == '\\' && re[1] == '.';
        if (n + 2 > n_out - 1 || ends || (!dot && !any && strchr("\\[](){}|+*?^", *re)))
            return false;
        ends = *re == '$';
        if (!ends)
            out[n++] = any ? '*' : dot ? '.' : *re == '.' ? '?' : *re;
        re += any || dot;
    }
    if (!ends)
        out[n++] = '*';
    out[n] = 0;
    return true;
}

static bool names(const char *entry, const char *module)
{
    char glob[256];
    const size_t n = strlen(entry), k = strlen(module);
    if (!strncmp(entry, "re:", 3))
        return plain_regex(entry + 3, glob, sizeof glob) && matches(glob, module);
    if (strpbrk(entry, "*?"))
        return matches(entry, module);
    return n && k >= n && !strcmp(module + (k - n), entry) && (k == n || module[k - n - 1] == '.');
}

/* ---- compressed-tensors ---- */

/* A tile as [128, 128] or "128x128". */
static void take_tile(struct scheme *s, struct json_object *v)
{
    long long a = 0, b = 0;
    if (json_object_is_type(v, json_type_array) && json_object_array_length(v) == 2) {
        a = json_object_get_int64(json_object_array_get_idx(v, 0));
        b = json_object_get_int64(json_object_array_get_idx(v, 1));
    } else if (json_object_is_type(v, json_type_string)) {
        (void)sscanf(json_object_get_string(v), "%9lldx%9lld", &a, &b);
    }
    if (a > 0 && b > 0 && a <= 1 << 30 && b <= 1 << 30) {
        s->tile[0] = a;
        s->tile[1] = b;
    }
}

static ingle_status take_group(const struct reader *r, const char *name, struct json_object *g)
{
    static const char *const formats[] = {
        "",      "pack-quantized",       "naive-quantized",      "float-quantized", "int-quantized",
        "dense", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", NULL};
    struct scheme *s = r->to;
    struct json_object *w = json_member(g, "weights");
    char field[80];
    snprintf(field, sizeof field, "config_groups.%.24s.format", name);
    if (!is_one_of(text(g, "format"), formats))
        return refuse(r, field, text(g, "format"));
    if (!w)
        return INGLE_OK;
    if (s->n_groups == MAX_GROUPS)
        return err_set(r->err, INGLE_LIMIT, "'%s': %s: '%s.config_groups' has more than %d groups",
                       io_path(r->file), r->side, r->key, MAX_GROUPS);
    const char *type = text(w, "type"), *strategy = text(w, "strategy");
    struct json_object *size = json_member(w, "group_size"),
                       *symmetric = json_member(w, "symmetric"), *bits = json_member(w, "num_bits");
    const struct group one = {
        .bits = json_object_get_int64(bits),
        .size = !strstr(strategy, "group") && *strategy ? 0 : json_object_get_int64(size),
        .is_float = !strcmp(type, "float"),
        .symmetric = !symmetric || json_object_get_boolean(symmetric)};
    snprintf(field, sizeof field, "config_groups.%.24s.weights.num_bits", name);
    if (one.bits != 4 && one.bits != 8)
        return refuse(r, field, bits ? json_object_get_string(bits) : "null");
    snprintf(field, sizeof field, "config_groups.%.24s.weights.type", name);
    if (!one.is_float && strcmp(type, "int"))
        return refuse(r, field, type);
    take_tile(s, json_member(w, "block_structure"));
    s->group[s->n_groups++] = one;
    return INGLE_OK;
}

static ingle_status read_compressed(const struct reader *r, struct json_object *q)
{
    static const char *const formats[] = {"",
                                          "pack-quantized",
                                          "naive-quantized",
                                          "float-quantized",
                                          "int-quantized",
                                          "dense",
                                          "nvfp4-pack-quantized",
                                          "mxfp4-pack-quantized",
                                          "mxfp8-quantized",
                                          "mixed-precision",
                                          NULL};
    struct json_object *groups = json_member(q, "config_groups");
    const char *sparse = text(json_member(q, "sparsity_config"), "format");
    if (!is_one_of(text(q, "format"), formats))
        return refuse(r, "format", text(q, "format"));
    if (*sparse && strcmp(sparse, "dense") != 0)
        return refuse(r, "sparsity_config.format", sparse);
    r->to->cache = r->to->cache || json_member(q, "kv_cache_scheme");
    if (!json_object_is_type(groups, json_type_object))
        return INGLE_OK;
    json_object_object_foreach(groups, name, g)
    {
        const ingle_status s = take_group(r, name, g);
        if (s)
            return s;
    }
    return INGLE_OK;
}

/* ---- the others ---- */

static ingle_status read_fp8(const struct reader *r, struct json_object *q)
{
    const char *fmt = text(q, "fmt");
    take_tile(r->to, json_member(q, "weight_block_size"));
    if (*fmt && strcmp(fmt, "e4m3") != 0 && strcmp(fmt, "float8_e4m3fn") != 0)
        return refuse(r, "fmt", fmt);
    return INGLE_OK;
}

static ingle_status read_modelopt(const struct reader *r, struct json_object *q)
{
    static const char *const known[] = {
        "FP8",         "NVFP4",           "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN",
        "W4A16_NVFP4", "MIXED_PRECISION", "",          NULL};
    struct json_object *cache = json_member(q, "kv_cache_quant_algo");
    if (!is_one_of(text(q, "quant_algo"), known))
        return refuse(r, "quant_algo", text(q, "quant_algo"));
    r->to->cache = cache != NULL;
    return read_compressed(r, q);
}

/* Without a name: which tool writes such keys. */
static const char *method_of(const struct reader *r, struct json_object *q)
{
    const char *said = text(q, "quant_method");
    if (*said)
        return said;
    if (json_member(q, "quant_algo") || !strcmp(r->side, "hf_quant_config.json"))
        return "modelopt";
    if (json_member(q, "w_bit"))
        return "awq";
    if (json_member(q, "desc_act") || !strcmp(r->side, "quantize_config.json"))
        return "gptq";
    if (json_member(q, "load_in_4bit") || json_member(q, "load_in_8bit"))
        return "bitsandbytes";
    if (json_member(q, "config_groups"))
        return "compressed-tensors";
    return json_member(q, "bits") && json_member(q, "group_size") ? "mlx" : "unknown";
}

static ingle_status read_one(const struct reader *r, struct json_object *q)
{
    static const char *const lists[] = {"ignore", "modules_to_not_convert", "exclude_modules",
                                        "ignored_layers"};
    if (!json_object_is_type(q, json_type_object) || !json_object_object_length(q))
        return INGLE_OK;
    const char *method = method_of(r, q);
    snprintf(r->to->method, sizeof r->to->method, "%s", method);
    snprintf(r->to->file, sizeof r->to->file, "%s", r->side);
    ingle_status s;
    if (!strcmp(method, "compressed-tensors") || !strcmp(method, "compressed_tensors"))
        s = read_compressed(r, q);
    else if (!strcmp(method, "fp8") || !strcmp(method, "fbgemm_fp8"))
        s = read_fp8(r, q);
    else if (!strncmp(method, "modelopt", 8))
        s = read_modelopt(r, q);
    else if (*text(q, "quant_method"))
        s = refuse(r, "quant_method", method);
    else
        s = err_set(r->err, INGLE_UNSUP,
                    "'%s': %s: '%s' is of the method %s, which is not read; %s", io_path(r->file),
                    r->side, r->key, method, works);
    for (size_t i = 0; !s && i < sizeof lists / sizeof *lists; i++)
        s = take_ignored(r, json_member(q, lists[i]));
    return s;
}

/* A file beside config.json; "quantization" is where ModelOpt has its values. */
static ingle_status read_side(struct reader *r, const char *name)
{
    char *at;
    size_t n;
    struct json_object *o = NULL;
    ingle_status s = io_side_file(r->file, name, SIDE_LIMIT, &at, &n, r->err);
    if (s)
        return s == INGLE_NOTFOUND ? INGLE_OK : s;
    s = json_parse(at, n, NULL, &o, r->err);
    mem_free(at);
    if (s)
        return err_prefix(r->err, "'%s': %s", io_path(r->file), name);
    struct json_object *inner = json_member(o, "quantization");
    r->side = name;
    r->key = inner ? "quantization" : "";
    s = read_one(r, inner ? inner : o);
    json_object_put(o);
    return s;
}

/* Without a configuration: names that only other layouts have. */
static ingle_status check_names(const struct model *m, struct err *err)
{
    static const struct { const char *last, *method;
    } others[] = {{"qweight", "GPTQ or AWQ"}, {"qzeros", "GPTQ or AWQ"}, {"g_idx", "GPTQ"},
                  {"absmax", "bitsandbytes"}, {"SCB", "bitsandbytes"},   {"W_q", "HQQ"},
                  {"codebooks", "AQLM"}};
    for (size_t i = 0; i < m->n_entries; i++) {
        const char *name = m->entry[i].t->name, *dot = strrchr(name, '.');
        for (size_t k = 0; dot && k < sizeof others / sizeof *others; k++)
            if (!strcmp(dot + 1, others[k].last))
                return err_set(err, INGLE_UNSUP,
                               "'%s': tensor '%s' is of %s, which is not read; %s",
                               io_path(m->file), name, others[k].method, works);
    }
    return INGLE_OK;
}

ingle_status model_read_scheme(struct model *m, struct json_object *config, struct err *err)
{
    static const char *const keys[] = {"quantization_config", "compression_config", "quantization"};
    static const char *const sides[] = {"hf_quant_config.json", "quantize_config.json",
                                        "quant_config.json"};
    model_scheme_free(m->scheme);
    m->scheme = mem_zalloc(sizeof *m->scheme);
    if (!m->scheme)
        return err_set(err, INGLE_NOMEM, "no memory for a model");
    struct reader r = {m->file, "config.json", "", m->scheme, err};
    ingle_status s = INGLE_OK;
    for (size_t i = 0; !s && !*m->scheme->method && i < sizeof keys / sizeof *keys; i++) {
        struct json_object *q = json_member(config, keys[i]);
        r.key = keys[i];
        s = read_one(&r, q ? q : json_member(json_member(config, "text_config"), keys[i]));
    }
    for (size_t i = 0; !s && !*m->scheme->method && i < sizeof sides / sizeof *sides; i++)
        s = read_side(&r, sides[i]);
    return s || *m->scheme->method ? s : check_names(m, err);
}

void model_scheme_free(struct scheme *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_ignored; i++)
        mem_free(s->ignored[i]);
    mem_free(s->ignored);
    mem_free(s);
}

/* ---- against the tensors ---- */

void model_scheme_tile(const struct model *m, int64_t *rows, int64_t *columns)
{
    if (!m->scheme || !m->scheme->tile[0])
        return;
    *rows = m->scheme->tile[0];
    *columns = m->scheme->tile[1];
}

bool model_scheme_has_cache(const struct model *m)
{
    return m->scheme && m->scheme->cache;
}

static bool agrees(const struct group *g, const struct source *p, const struct layout *l)
{
    const int bits = l->codes == CODES_INT ? l->bits : l->codes == CODES_FP8 ? 8 : 4;
    const int64_t size = p->tile_columns == l->in ? 0 : p->tile_columns;
    return g->bits == bits && g->is_float == (l->codes != CODES_INT) &&
           (!g->size || !size || g->size == size) &&
           (l->codes != CODES_INT || g->symmetric || p->zero);
}

ingle_status model_scheme_check(const struct model *m, const struct source *p,
                                const struct layout *l, struct err *err)
{
    const struct scheme *s = m->scheme;
    const char *name = p->t->name;
    char module[NAME_MAX_BYTES];
    if (!s || !*s->method)
        return INGLE_OK;
    snprintf(module, sizeof module, "%s", name);
    char *end = strrchr(module, '.');
    if (end && !strncmp(end, ".weight", 7))
        *end = 0;
    for (size_t i = 0; i < s->n_ignored; i++)
        if (names(s->ignored[i], module))
            return err_set(
                err, INGLE_FORMAT,
                "'%s': tensor '%s' has the scales '%s', but %s lists '%.80s' as not quantised",
                io_path(m->file), name, p->scale->name, s->file, s->ignored[i]);
    size_t i = 0;
    while (i < s->n_groups && !agrees(&s->group[i], p, l))
        i++;
    if (!s->n_groups || i < s->n_groups)
        return INGLE_OK;
    const struct group *g = &s->group[0];
    return err_set(err, INGLE_FORMAT,
                   "'%s': tensor '%s' has %s of %d bits%s with a scale for %lld columns, which "
                   "none of the config_groups in %s says "
                   "(the first: num_bits %lld, type %s, group_size %lld, symmetric %s)",
                   io_path(m->file), name, l->codes == CODES_INT ? "whole numbers" : "floats",
                   l->codes == CODES_INT   ? l->bits
                   : l->codes == CODES_FP8 ? 8
                                           : 4,
                   p->zero ? " and zero points" : "", (long long)p->tile_columns, s->file,
                   (long long)g->bits, g->is_float ? "float" : "int", (long long)g->size,
                   g->symmetric ? "true" : "false");
}
