/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experts - how often each expert was chosen: a run's counters into a file (--experts FILE),
 * where those of earlier runs with the same model are added up, and what a file says:
 * which experts are hot, and which share of all choices the best of them would serve.
 */
#include "cli/cli.h"
#include "cli/input.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/output.h"
#include "base/write.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 4096, MOST_EXPERTS = 65536, HOT = 6 };

/* hits[l * n + e]; a layer without experts is all zeros. */
struct counts {
    char *model;
    uint64_t identity;
    int64_t n_layers, n;
    uint64_t *hits;
};

static void counts_release(struct counts *c)
{
    mem_free(c->model);
    mem_free(c->hits);
    *c = (struct counts){0};
}

static ingle_status counts_init(struct counts *c, const char *model, struct err *err)
{
    c->model = mem_strdup(model);
    c->hits = mem_calloc((size_t)(c->n_layers * c->n) + 1, sizeof *c->hits);
    return c->model && c->hits ? INGLE_OK
                               : err_set(err, INGLE_NOMEM, "no memory for counts of experts");
}

/* ---- from an engine, from a file ---- */

static ingle_status take(const struct ingle_model *m, const struct ingle_engine *e,
                         struct counts *c, struct err *err)
{
    struct ingle_engine_info info;
    struct ingle_model_info model;
    ingle_engine_info(e, &info);
    ingle_model_info(m, &model);
    if (!info.n_experts)
        return err_set(err, INGLE_UNSUP, "%s: the model has no experts to count", model.path);
    *c = (struct counts){.identity = info.identity, .n_layers = info.n_layers, .n = info.n_experts};
    const ingle_status st = counts_init(c, model.path, err);
    for (int64_t l = 0; !st && l < c->n_layers; l++) {
        const uint64_t *hits = ingle_engine_expert_hits(e, l);
        if (hits)
            memcpy(c->hits + l * c->n, hits, (size_t)c->n * sizeof *hits);
    }
    return st;
}

static struct json_object *member(struct json_object *o, const char *key, enum json_type type)
{
    struct json_object *v = NULL;
    return json_object_object_get_ex(o, key, &v) && json_object_is_type(v, type) ? v : NULL;
}

/* The rows of "layers": lists of whole numbers, all of one length. */
static ingle_status read_layers(struct json_object *list, struct counts *c)
{
    for (int64_t l = 0; l < c->n_layers; l++) {
        struct json_object *row = json_object_array_get_idx(list, (size_t)l);
        if (!json_object_is_type(row, json_type_array) ||
            (int64_t)json_object_array_length(row) != c->n)
            return INGLE_FORMAT;
        for (int64_t i = 0; i < c->n; i++) {
            struct json_object *v = json_object_array_get_idx(row, (size_t)i);
            const int64_t hits = json_object_get_int64(v);
            if (!json_object_is_type(v, json_type_int) || hits < 0 ||
                hits > INT64_MAX / MOST_LAYERS / MOST_EXPERTS)
                return INGLE_FORMAT;
            c->hits[l * c->n + i] = (uint64_t)hits;
        }
    }
    return INGLE_OK;
}

static ingle_status read_counts(const char *path, struct counts *c, struct err *err)
{
    char *text;
    size_t n;
    struct json_object *o = NULL;
    *c = (struct counts){0};
    ingle_status st = cli_slurp(path, &text, &n, err);
    if (st)
        return st;
    st = json_parse(text, n, NULL, &o, err);
    mem_free(text);
    if (st) {
        err_prefix(err, "%s", path);
        return st;
    }
    struct json_object *list = member(o, "layers", json_type_array),
                       *model = member(o, "model", json_type_string);
    struct json_object *identity = member(o, "identity", json_type_string);
    struct json_object *first = list ? json_object_array_get_idx(list, 0) : NULL;
    c->n_layers = list ? (int64_t)json_object_array_length(list) : 0;
    c->n =
        json_object_is_type(first, json_type_array) ? (int64_t)json_object_array_length(first) : 0;
    if (!model || !identity || c->n < 1 || c->n > MOST_EXPERTS || c->n_layers > MOST_LAYERS)
        st = INGLE_FORMAT;
    if (!st) {
        c->identity = strtoull(json_object_get_string(identity), NULL, 16);
        st = counts_init(c, json_object_get_string(model), err);
    }
    if (!st)
        st = read_layers(list, c);
    if (st == INGLE_FORMAT)
        err_set(
            err, st,
            "%s: these are no counts of experts: 'model', 'identity' and 'layers', equally long "
            "lists of whole numbers, are expected",
            path);
    json_object_put(o);
    if (st)
        counts_release(c);
    return st;
}

static ingle_status same_model(const struct counts *now, const struct counts *old, const char *path,
                               struct err *err)
{
    if (old->identity == now->identity && old->n == now->n && old->n_layers == now->n_layers)
        return INGLE_OK;
    return err_set(err, INGLE_ARG, "%s: it counts the experts of another model, '%s'", path,
                   old->model);
}

ingle_status cli_experts_check(const struct ingle_model *m, const struct ingle_engine *e,
                               const char *path, struct err *err)
{
    struct counts now, old;
    ingle_status st = strcmp(path, "-") == 0 ? INGLE_OK : take(m, e, &now, err);
    if (st || strcmp(path, "-") == 0)
        return st;
    if (output_kind_of(path) != OUTPUT_EMPTY && !(st = read_counts(path, &old, err))) {
        st = same_model(&now, &old, path, err);
        counts_release(&old);
    }
    counts_release(&now);
    return st;
}

/* What the file at path holds is added, if there is one. */
static ingle_status add_file(struct counts *c, const char *path, struct err *err)
{
    struct counts old;
    const enum output_kind is = output_kind_of(path);
    if (is == OUTPUT_EMPTY)
        return INGLE_OK;
    ingle_status st = read_counts(path, &old, err);
    if (st)
        return st;
    st = same_model(c, &old, path, err);
    for (int64_t i = 0; !st && i < c->n * c->n_layers; i++)
        c->hits[i] += old.hits[i];
    counts_release(&old);
    return st;
}

static ingle_status write_counts(const struct counts *c, const char *path, struct err *err)
{
    const struct output o = {.path = path, .kind = OUTPUT_COUNTS};
    char identity[20];
    struct str s;
    snprintf(identity, sizeof identity, "%016" PRIx64, c->identity);
    str_init(&s);
    s.spaced = true;
    write_open(&s, '{');
    write_member(&s, "model", c->model);
    write_member(&s, "identity", identity);
    write_key(&s, "layers");
    write_open(&s, '[');
    for (int64_t l = 0; l < c->n_layers && c->n; l++) {
        str_adds(&s, l ? ",\n" : "\n");
        write_open(&s, '[');
        for (int64_t i = 0; i < c->n; i++)
            write_uint(&s, c->hits[l * c->n + i]);
        write_close(&s, ']');
    }
    write_close(&s, ']');
    write_close(&s, '}');
    str_addc(&s, '\n');
    const ingle_status st = str_ok(&s)
                                ? output_save(&o, s.at, s.n, err)
                                : err_set(err, INGLE_NOMEM, "%s: no memory to write it", path);
    str_release(&s);
    return st;
}

/* ---- what the counts say ---- */

static int falling(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static uint64_t sum_of(const uint64_t *x, int64_t n)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* Percent of all hits that the best `percent` of the experts have; x falls. */
static double share_of_best(const uint64_t *x, int64_t n, int percent)
{
    return 100.0 * (double)sum_of(x, (n * percent + 99) / 100) / (double)sum_of(x, n);
}

/* How many experts have `percent` of all hits. */
static int64_t experts_for(const uint64_t *x, int64_t n, int percent)
{
    const double want = (double)sum_of(x, n) * percent / 100;
    double sum = 0;
    int64_t k = 0;
    while (k < n && sum < want)
        sum += (double)x[k++];
    return k;
}

/* "17: 3.2 %", the most chosen first. */
static void print_hot(FILE *to, const uint64_t *hits, int64_t n, uint64_t sum)
{
    int64_t best[HOT], n_best = 0;
    for (int64_t e = 0; e < n; e++) {
        int64_t at = n_best < HOT ? n_best++ : HOT;
        for (; at > 0 && hits[e] > hits[best[at - 1]]; at--)
            if (at < HOT)
                best[at] = best[at - 1];
        if (at < HOT)
            best[at] = e;
    }
    for (int64_t i = 0; i < n_best && hits[best[i]]; i++)
        fprintf(to, " %lld: %.1f %%", (long long)best[i],
                100.0 * (double)hits[best[i]] / (double)sum);
    fputc('\n', to);
}

static void print_layer(FILE *to, const uint64_t *hits, uint64_t *sorted, int64_t l, int64_t n)
{
    const uint64_t sum = sum_of(hits, n);
    if (!sum)
        return;
    memcpy(sorted, hits, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, falling);
    fprintf(to, "%5lld %5lld %7.1f %% %6lld %6lld %6lld  ", (long long)l,
            (long long)experts_for(sorted, n, 100), share_of_best(sorted, n, 10),
            (long long)experts_for(sorted, n, 50), (long long)experts_for(sorted, n, 80),
            (long long)experts_for(sorted, n, 95));
    print_hot(to, hits, n, sum);
}

static ingle_status print_counts(FILE *to, const struct counts *c, struct err *err)
{
    static const int kept[] = {5, 10, 20, 30, 50, 70};
    const int64_t all = c->n_layers * c->n;
    int64_t n_all = 0;
    uint64_t *sorted = mem_calloc((size_t)all + 1, sizeof *sorted);
    if (!sorted)
        return err_set(err, INGLE_NOMEM, "no memory for counts of experts");
    fprintf(to, "%s: %" PRIu64 " choices of %lld experts in a layer\n", CLI_SHOWN(c->model),
            sum_of(c->hits, all), (long long)c->n);
    fputs("layer  used  best 10 %  for 50 %  80 %  95 %   most chosen\n", to);
    for (int64_t l = 0; l < c->n_layers; l++)
        print_layer(to, c->hits + l * c->n, sorted, l, c->n);
    for (int64_t l = 0; l < c->n_layers; l++)
        if (sum_of(c->hits + l * c->n, c->n)) {
            memcpy(sorted + n_all, c->hits + l * c->n, (size_t)c->n * sizeof *sorted);
            n_all += c->n;
        }
    qsort(sorted, (size_t)n_all, sizeof *sorted, falling);
    for (size_t i = 0; n_all && i < sizeof kept / sizeof *kept; i++)
        fprintf(to, "%s%d %%: %.1f %%", i ? ", " : "the most chosen of all experts serve, ",
                kept[i], share_of_best(sorted, n_all, kept[i]));
    fputs(n_all ? " of the choices\n" : "no expert was chosen\n", to);
    mem_free(sorted);
    return INGLE_OK;
}

static void print_json(const struct counts *c)
{
    uint64_t *sorted = mem_calloc((size_t)c->n + 1, sizeof *sorted);
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_member(&out, "model", c->model);
    write_member_int(&out, "experts", c->n);
    write_key(&out, "layers");
    write_open(&out, '[');
    for (int64_t l = 0; sorted && l < c->n_layers; l++) {
        const uint64_t *hits = c->hits + l * c->n, sum = sum_of(hits, c->n);
        if (!sum)
            continue;
        memcpy(sorted, hits, (size_t)c->n * sizeof *sorted);
        qsort(sorted, (size_t)c->n, sizeof *sorted, falling);
        write_open(&out, '{');
        write_member_int(&out, "layer", l);
        write_member_uint(&out, "choices", sum);
        write_member_int(&out, "used", experts_for(sorted, c->n, 100));
        write_member_fixed(&out, "best_tenth", 4, share_of_best(sorted, c->n, 10) / 100);
        write_member_int(&out, "for_half", experts_for(sorted, c->n, 50));
        write_close(&out, '}');
    }
    write_close(&out, ']');
    write_close(&out, '}');
    cli_json_end(&out, "\n");
    mem_free(sorted);
}

/* ---- commands ---- */

int cli_experts_keep(struct cli *c, const struct ingle_model *m, const struct ingle_engine *e,
                     const char *path)
{
    struct counts now;
    struct err err;
    ingle_status st = take(m, e, &now, &err);
    if (st)
        return cli_fail_err(c, &err);
    if (strcmp(path, "-") == 0) {
        st = print_counts(stderr, &now, &err);
    } else {
        st = add_file(&now, path, &err);
        if (!st)
            st = write_counts(&now, path, &err);
    }
    counts_release(&now);
    return st ? cli_fail_err(c, &err) : CLI_OK;
}

/* The draft block of a file may be one of its layers. */
static ingle_status check_model(struct cli *c, const struct counts *counts, const char *path,
                                const char *model, struct err *err)
{
    struct ingle_model *m;
    struct ingle_model_info info;
    struct ingle_error error;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const ingle_status st = ingle_model_open(&m, model, &callbacks, &error);
    if (st)
        return err_set(err, st, "%s", error.text);
    ingle_model_info(m, &info);
    const int64_t n_layers = info.n_layers;
    ingle_model_close(m);
    if (n_layers == counts->n_layers || n_layers == counts->n_layers + 1)
        return INGLE_OK;
    return err_set(err, INGLE_ARG,
                   "%s: it counts the experts of %lld layers (of '%s'), '%s' has %lld", path,
                   (long long)counts->n_layers, counts->model, model, (long long)n_layers);
}

int cli_experts_show(struct cli *c, const char *path, const char *model, bool json)
{
    struct counts counts;
    struct err err;
    ingle_status st = read_counts(path, &counts, &err);
    if (!st && model && (st = check_model(c, &counts, path, model, &err)))
        counts_release(&counts);
    if (st)
        return cli_fail_err(c, &err);
    if (json)
        print_json(&counts);
    else
        st = print_counts(stdout, &counts, &err);
    counts_release(&counts);
    return st ? cli_fail_err(c, &err) : CLI_OK;
}
