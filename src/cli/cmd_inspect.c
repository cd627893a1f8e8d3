/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/hub.h"

#include "base/size.h"
#include "base/write.h"
#include "tool/tool.h"

#include <string.h>

/* For what a file drafts; false: it is no drafter, or no model that can be opened. */
static bool drafts(const char *path, char *text, size_t n)
{
    struct ingle_model *m;
    if (!path || ingle_model_open(&m, path, NULL, NULL))
        return false;
    const bool is = ingle_model_drafts(m, text, n);
    ingle_model_close(m);
    return is;
}

static int show_file(struct cli *c, const char *path)
{
    char text[320];
    const struct tool_inspect_options o = {
        .json = ingle_config_flag(c->config, "json"),
        .tensors = ingle_config_flag(c->config, "tensors"),
        .drafts = drafts(path, text, sizeof text) ? text : NULL,
    };
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const struct report_sink sink = {callbacks.report, callbacks.progress, callbacks.arg};
    struct str out;
    struct err err;
    size_t n = 0;
    const void *nano = path ? NULL : ingle_nano(&n);
    str_init(&out);
    int rc = CLI_OK;
    if (tool_inspect(path ? path : "nano-gemma4 (built in)", nano, n, &o, &sink, &out, &err))
        rc = cli_fail_err(c, &err);
    else
        cli_put_text(stdout, out.at, out.n);
    str_release(&out);
    return rc;
}

static void print_plan_json(const struct ingle_plan *p)
{
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_key(&out, "items");
    write_open(&out, '{');
    for (int i = 0; i < p->n_items; i++)
        write_member_uint(&out, p->item[i].name, p->item[i].bytes);
    write_close(&out, '}');
    write_key(&out, "gpu");
    write_open(&out, '{');
    write_member(&out, "name", p->gpu);
    write_key(&out, "layers");
    write_open(&out, '[');
    write_int(&out, p->gpu_first);
    write_int(&out, p->gpu_end);
    write_close(&out, ']');
    write_member_bool(&out, "experts", p->gpu_experts);
    write_key(&out, "draft_layers");
    write_open(&out, '[');
    write_int(&out, p->gpu_draft_first);
    write_int(&out, p->gpu_draft_end);
    write_close(&out, ']');
    write_member_bool(&out, "shared", p->gpu_shared);
    write_member_uint(&out, "bytes", p->gpu_bytes);
    write_member_uint(&out, "limit_bytes", p->gpu_limit_bytes);
    write_close(&out, '}');
    write_member_uint(&out, "total_bytes", p->total_bytes);
    write_member_uint(&out, "limit_bytes", p->limit_bytes);
    write_member_uint(&out, "point_bytes", p->point_bytes);
    write_member_bool(&out, "fits", p->fits);
    write_member_int(&out, "ctx", p->n_ctx);
    write_member_int(&out, "chunk", p->max_rows);
    write_member(&out, "kv", p->kv);
    write_member_bool(&out, "mapped", p->mapped);
    write_member_int(&out, "nodes", p->n_nodes);
    write_member_uint(&out, "expert_bytes", p->expert_bytes);
    write_member_uint(&out, "expert_memory_bytes", p->expert_memory_bytes);
    write_key(&out, "tokens_per_s");
    write_open(&out, '[');
    write_fixed(&out, 3, p->tokens_low);
    write_fixed(&out, 3, p->tokens_high);
    write_close(&out, ']');
    write_member_significant(&out, "disk_bytes_per_s", 6, p->disk_bytes_per_s);
    write_member_significant(&out, "read_bytes_per_s", 6, p->read_bytes_per_s);
    write_member_int(&out, "kv_pool_tokens", p->kv_pool_tokens);
    write_member_uint(&out, "kv_disk_session_bytes", p->kv_disk_session_bytes);
    write_member_uint(&out, "kv_disk_bytes", p->kv_disk_bytes);
    write_member_uint(&out, "kv_disk_limit_bytes", p->kv_disk_limit_bytes);
    write_member(&out, "advice", p->advice);
    write_close(&out, '}');
    cli_json_end(&out, "\n");
}

static void print_row(bool gpu, const char *name, uint64_t bytes, uint64_t gpu_bytes)
{
    printf("%-18s %10s", name, SIZE_OF(bytes));
    if (gpu)
        printf(" %10s", gpu_bytes ? SIZE_OF(gpu_bytes) : "");
    putchar('\n');
}

static void print_plan_text(const struct ingle_plan *p)
{
    const bool gpu = p->gpu[0] != 0;
    if (gpu)
        printf("%-18s %10s %10s\n", "", "memory", "card");
    for (int i = 0; i < p->n_items; i++)
        print_row(gpu, p->item[i].name, p->item[i].bytes, p->item_gpu_bytes[i]);
    print_row(gpu, "together", p->total_bytes, p->gpu_bytes);
    print_row(gpu, "free", p->limit_bytes, p->gpu_limit_bytes);
    if (gpu && p->gpu_end > p->gpu_first)
        printf("%s computes layers %lld to %lld%s; %s\n", p->gpu, (long long)p->gpu_first,
               (long long)p->gpu_end - 1,
               p->expert_bytes && !p->gpu_experts ? ", their experts stay with the processor" : "",
               p->gpu_shared ? "its memory is the processor's: its column is a part of the other"
                             : "their weights lie there only");
    else if (gpu)
        printf("%s: no layer of the model is on it\n", p->gpu);
    if (gpu && p->gpu_draft_end > p->gpu_draft_first)
        printf("%s computes layers %lld to %lld of the drafter's %lld%s\n", p->gpu,
               (long long)p->gpu_draft_first, (long long)p->gpu_draft_end - 1,
               (long long)p->draft_layers,
               p->gpu_draft_experts ? ", with their experts" : "");
    printf("context %lld tokens, steps of %lld, keys and values %s: %s%s\n", (long long)p->n_ctx,
           (long long)p->max_rows, p->kv,
           !p->fits     ? "does not fit; "
           : *p->advice ? "fits; "
                        : "fits",
           p->advice);
    if (p->kv_pool_tokens)
        printf("keys and values of full layers: %lld tokens of a session in memory, %s of the %lld "
               "on disk (all sessions: %s of %s that may be there)\n",
               (long long)p->kv_pool_tokens, SIZE_OF(p->kv_disk_session_bytes),
               (long long)p->n_ctx, SIZE_OF(p->kv_disk_bytes), SIZE_OF(p->kv_disk_limit_bytes));
    printf("restore points of the prefix cache: %s of windows each, less where they lie together\n",
           SIZE_OF(p->point_bytes));
    if (p->expert_memory_bytes < p->expert_bytes)
        printf("experts in memory %s of %s (%.0f %%), on disk %s\n",
               SIZE_OF(p->expert_memory_bytes), SIZE_OF(p->expert_bytes),
               100 * (double)p->expert_memory_bytes / (double)p->expert_bytes,
               SIZE_OF(p->expert_bytes - p->expert_memory_bytes));
    if (p->tokens_high > 0)
        printf("expected in decode: %.1f to %.1f tokens a second (disk %.2f GB/s, memory %.1f "
               "GB/s, both measured now; hits simulated)\n",
               p->tokens_low, p->tokens_high, p->disk_bytes_per_s * 1e-9,
               p->read_bytes_per_s * 1e-9);
    if (p->mapped)
        printf("the weights are mapped: page cache, which processes share and the system takes "
               "back under pressure\n");
    puts("'ingle models' shows how fast published models are on this machine");
    if (p->n_nodes > 1)
        printf("memory nodes %d: weights, keys and values are spread over them\n", p->n_nodes);
}

void cli_print_plan(const struct ingle_plan *p, bool json)
{
    if (json)
        print_plan_json(p);
    else
        print_plan_text(p);
}

/* ---- a model that is divided by layers ---- */

void cli_write_part(struct str *out, const struct ingle_stage_part *p)
{
    write_open(out, '{');
    write_member(out, "address", p->address);
    write_member_int(out, "from", p->from);
    write_member_int(out, "to", p->to);
    write_member_bool(out, "any_layers", p->open);
    write_member_bool(out, "fits", p->fits);
    write_member_uint(out, "weight_bytes", p->weight_bytes);
    write_member_uint(out, "kv_bytes", p->kv_bytes);
    write_member_uint(out, "other_bytes", p->other_bytes);
    write_member_uint(out, "total_bytes", p->total_bytes);
    write_member_uint(out, "limit_bytes", p->limit_bytes);
    write_member_uint(out, "token_bytes", p->token_bytes);
    write_member_significant(out, "read_bytes_per_s", 6, p->read_bytes_per_s);
}

void cli_print_parts(const struct ingle_stage_part *part, int n)
{
    printf("\n%-24s %9s %10s %10s %10s %10s %10s %12s\n", "process", "layers", "weights", "KV",
           "other", "together", "has", "token reads");
    for (int i = 0; i < n; i++) {
        const struct ingle_stage_part *p = &part[i];
        char layers[48];
        snprintf(layers, sizeof layers, "%lld:%lld", (long long)p->from, (long long)p->to);
        printf("%-24s %9s %10s %10s %10s %10s %10s %9.2f ms%s\n",
               *p->address ? CLI_SHOWN(p->address) : "engine", layers, SIZE_OF(p->weight_bytes),
               SIZE_OF(p->kv_bytes), SIZE_OF(p->other_bytes), SIZE_OF(p->total_bytes),
               SIZE_OF(p->limit_bytes),
               p->read_bytes_per_s > 0 ? 1e3 * (double)p->token_bytes / p->read_bytes_per_s : 0,
               p->fits ? "" : "  does not fit");
        if (!p->fits && *p->advice)
            printf("%-24s %s\n", "", p->advice);
    }
    puts("token reads: the time in which its memory delivers the weights of its layers for one "
         "token");
}

/* The plans of all stages, after the engine's own. */
static int show_parts(struct cli *c, struct ingle_model *m, const struct ingle_engine_options *o)
{
    struct ingle_plan plan;
    struct ingle_stage_part part[INGLE_STAGE_PARTS];
    int64_t best[INGLE_STAGE_PARTS];
    struct ingle_error error;
    struct str out;
    int n;
    bool fits = true;
    if (ingle_engine_plan_stages(m, o, false, &plan, part, &n, best, &error))
        return cli_fail(c, &error);
    for (int i = 0; i < n; i++)
        fits = fits && part[i].fits;
    if (ingle_config_flag(c->config, "json")) {
        cli_json(&out);
        write_open(&out, '{');
        write_member_int(&out, "ctx", plan.n_ctx);
        write_member(&out, "kv", plan.kv);
        write_member_bool(&out, "fits", fits);
        write_key(&out, "processes");
        write_open(&out, '[');
        for (int i = 0; i < n; i++) {
            cli_write_part(&out, &part[i]);
            write_close(&out, '}');
        }
        write_close(&out, ']');
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    } else {
        cli_print_plan(&plan, false);
        cli_print_parts(part, n);
    }
    return fits ? CLI_OK : CLI_FAILURE;
}

static int show_plan(struct cli *c, const char *path)
{
    struct ingle_model *m;
    struct ingle_error error;
    struct ingle_plan plan;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    struct ingle_engine_options o = {.callbacks = callbacks};
    ingle_config_engine(c->config, &o);
    if (ingle_model_open(&m, path, &callbacks, &error))
        return cli_fail(c, &error);
    int rc = CLI_OK;
    if (o.stages)
        rc = show_parts(c, m, &o);
    else if (ingle_engine_plan(m, &o, &plan, &error))
        rc = cli_fail(c, &error);
    else
        cli_hub_plan(c, &plan), cli_print_plan(&plan, ingle_config_flag(c->config, "json"));
    ingle_model_close(m);
    return rc;
}

/* ---- --store ---- */

struct shelf {
    struct str out; /* JSON */
    uint64_t identity; /* of the model whose prefixes can be used */
    char settings[352];
    bool json;
    int64_t n_files, n_matching, n_damaged;
    uint64_t bytes;
};

/* A file is sparse as these options say, or not at all; a drafter's pages may be there. */
static bool matches(const struct shelf *s, const struct ingle_store_entry *e)
{
    const char *sparse = strstr(s->settings, "+few");
    const size_t n = sparse ? (size_t)(sparse - s->settings) : strlen(s->settings);
    if (e->damage || e->identity != s->identity || strncmp(e->settings, s->settings, n) != 0)
        return false;
    const char *more = e->settings + n;
    const size_t n_few = sparse && strncmp(more, sparse, strlen(sparse)) == 0 ? strlen(sparse) : 0;
    return !more[n_few] || strcmp(more + n_few, " drafter") == 0;
}

static void print_age(int64_t s)
{
    if (s < 120)
        printf("%5lld s", (long long)s);
    else if (s < 7200)
        printf("%5lld m", (long long)(s / 60));
    else if (s < 172800)
        printf("%5lld h", (long long)(s / 3600));
    else
        printf("%5lld d", (long long)(s / 86400));
}

static void print_entry(void *arg, const struct ingle_store_entry *e)
{
    struct shelf *s = arg;
    const bool same = matches(s, e);
    if (s->json) {
        cli_json_line(&s->out, s->n_files == 0);
        write_open(&s->out, '{');
        write_member(&s->out, "name", e->name);
        write_member_int(&s->out, "from", e->from);
        write_member_int(&s->out, "tokens", e->length);
        write_member_uint(&s->out, "bytes", e->bytes);
        write_member_int(&s->out, "age_s", e->age_seconds);
        write_member(&s->out, "model", e->model);
        write_member(&s->out, "settings", e->settings);
        write_member_bool(&s->out, "match", same);
        if (e->damage)
            write_member(&s->out, "damage", e->damage);
        write_close(&s->out, '}');
    } else if (e->damage) {
        printf("%s\n", CLI_SHOWN(e->damage));
    } else {
        printf("%8lld - %-8lld %14s ", (long long)e->from, (long long)e->length,
               SIZE_OF(e->bytes));
        print_age(e->age_seconds);
        printf("  %-5s %-16s %s\n", same ? "yes" : "no", CLI_SHOWN(e->settings),
               CLI_SHOWN(e->model));
    }
    s->n_files++;
    s->n_matching += same;
    s->n_damaged += e->damage != NULL;
    s->bytes += e->bytes;
}

/* What is in a store, and what of it this model can use with these options. */
static int show_store(struct cli *c, const char *path, const char *dir)
{
    struct ingle_model *m;
    struct ingle_error error;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    struct ingle_engine_options o = {.callbacks = callbacks};
    struct shelf s = {.json = ingle_config_flag(c->config, "json")};
    ingle_config_engine(c->config, &o);
    cli_json(&s.out);
    if (ingle_model_open(&m, path, &callbacks, &error))
        return cli_fail(c, &error);
    struct ingle_plan plan;
    ingle_status st = ingle_engine_plan(m, &o, &plan, &error);
    snprintf(s.settings, sizeof s.settings, "%s %s", st ? "" : plan.kv, st ? "" : plan.numerics);
    if (!st)
        st = ingle_engine_identity(m, &o, &s.identity, &error);
    if (!st && s.json) {
        write_open(&s.out, '{');
        write_key(&s.out, "files");
        write_open(&s.out, '[');
    } else if (!st) {
        printf("%19s %14s %7s  %-5s %-16s %s\n", "tokens", "size", "age", "match", "settings",
               "model");
    }
    if (!st)
        st = ingle_store_list(dir, print_entry, &s, &error);
    if (!st && s.json) {
        write_close(&s.out, ']');
        write_member_uint(&s.out, "bytes", s.bytes);
        write_member_int(&s.out, "match", s.n_matching);
        write_member_int(&s.out, "damaged", s.n_damaged);
        write_close(&s.out, '}');
        cli_json_print(&s.out, "\n");
    } else if (!st) {
        printf("%lld files, %s; %lld for this model with these settings\n", (long long)s.n_files,
               SIZE_OF(s.bytes), (long long)s.n_matching);
    }
    str_release(&s.out);
    ingle_model_close(m);
    return st ? cli_fail(c, &error) : CLI_OK;
}

int cli_inspect(struct cli *c)
{
    const char *path = ingle_config_text(c->config, "model", 0);
    if (c->n_arg > 1 || (c->n_arg && path))
        return cli_usage(c, "one file at a time, not '%s'", c->arg[c->n_arg - 1]);
    path = c->n_arg ? c->arg[0] : path;
    const char *experts = ingle_config_text(c->config, "experts", 0);
    if (experts)
        return cli_experts_show(c, experts, path, ingle_config_flag(c->config, "json"));
    const char *store = ingle_config_text(c->config, "store", 0);
    if (store && !ingle_config_flag(c->config, "plan"))
        return show_store(c, path, store);
    return ingle_config_flag(c->config, "plan") ? show_plan(c, path) : show_file(c, path);
}
