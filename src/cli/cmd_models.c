/* SPDX-License-Identifier: Apache-2.0 */
/* models - which published model this machine can run, how fast, and the command to copy. */
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/hub.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "base/write.h"
#include "tool/tool.h"

#include <string.h>

enum { READ_BYTES = 256 << 20, N_DISKS = 3 };
static const double gib = 1024.0 * 1024 * 1024, busy_most = 0.06;
static const double disk_gb[N_DISKS] = {1, 3.5, 7};

ingle_status cli_memory_rate(struct pool *pool, int n_processors, struct cli_rate *out,
                             struct err *err)
{
    struct tool_round round[CLI_ROUNDS];
    const ingle_status st =
        tool_memory_rounds(pool, READ_BYTES, n_processors, round, CLI_ROUNDS, err);
    if (st)
        return st;
    *out = (struct cli_rate){.measured = true};
    for (int i = 0; i < CLI_ROUNDS; i++) {
        out->round[i] = round[i].bytes_per_s;
        out->busy[i] = round[i].others > busy_most;
        out->n_busy += out->busy[i];
        out->bytes_per_s =
            round[i].bytes_per_s > out->bytes_per_s ? round[i].bytes_per_s : out->bytes_per_s;
    }
    return INGLE_OK;
}

void cli_memory_rate_print(const struct cli_rate *r)
{
    printf("reading memory   %.1f GB/s", r->bytes_per_s / 1e9);
    if (!r->measured) {
        puts(" (--rate)");
        return;
    }
    fputs(", the best of", stdout);
    for (int i = 0; i < CLI_ROUNDS; i++)
        printf("%s %.1f%s", i ? "," : "", r->round[i] / 1e9, r->busy[i] ? "!" : "");
    putchar('\n');
    if (r->n_busy)
        printf("                 !: other programs used more than %.0f %% of the processors then; "
               "an idle machine may be faster\n",
               busy_most * 100);
}

/* "12.3", "2.4" */
static const char *speed(double tokens_per_s, char room[16])
{
    snprintf(room, 16, tokens_per_s < 9.95 ? "%.1f" : "%.0f", tokens_per_s);
    return room;
}

/* "21", or for a model whose experts come from a disk "2.4, 4.4, 5.3". */
static void add_speed(char out[48], const struct tool_model *m, enum tool_fit fit, double share,
                      double rate)
{
    char room[16];
    size_t k = 0;
    const int n = fit == TOOL_FROM_DISK ? N_DISKS : 1;
    out[0] = 0;
    for (int i = 0; i < n && k < 48; i++)
        k += (size_t)snprintf(out + k, 48 - k, "%s%s", i ? ", " : "",
                              speed(tool_model_rate(m, share, rate, disk_gb[i] * 1e9), room));
}

static const char *const fits[] = {"yes", "tight", "disk", "no"};

static void print_line(const struct tool_model *m, const char *program, uint64_t memory,
                       double rate)
{
    char tokens[48];
    double share;
    const enum tool_fit fit = tool_model_fit(m, memory, &share);
    add_speed(tokens, m, fit, share, rate);
    if (fit == TOOL_TOO_LARGE)
        snprintf(tokens, sizeof tokens, "-");
    printf("%-18s %-8s %7.1f  %-5s %14s", m->name, m->code, (double)m->need_mb * 1e6 / gib,
           fits[fit], tokens);
    if (fit != TOOL_TOO_LARGE && m->hub)
        printf("  %s chat -m hf:%s", program, m->hub);
    putchar('\n');
}

static void print_notes(uint64_t memory, double rate)
{
    size_t n;
    const struct tool_model *m = tool_models(&n);
    double share;
    bool tight = false, disk = false, any = false;
    for (size_t i = 0; i < n; i++) {
        const enum tool_fit fit = tool_model_fit(&m[i], memory, &share);
        any |= fit != TOOL_TOO_LARGE;
        tight |= fit == TOOL_TIGHT;
        disk |= fit == TOOL_FROM_DISK;
    }
    puts("\nGiB: weights, keys and values for 8,192 tokens, and the rest.  tokens/s = memory rate "
         "/ bytes that a token reads.");
    if (!any)
        puts("No model fits in this memory; 'ingle chat' without -m talks with the built-in one "
             "(2.5 MB).");
    if (tight)
        puts("tight: fits, and leaves others less than 2 GiB or 8 % of the memory: use a smaller "
             "--ctx, or close programs.");
    if (disk)
        printf("disk: a part of the experts is in memory, the others are read from disk: tokens/s "
               "are for disks of %g, %g and %g GB/s\n"
               "('ingle doctor --disk FILE' measures yours).\n",
               disk_gb[0], disk_gb[1], disk_gb[2]);
    for (size_t i = 0; i < n; i++)
        if (m[i].drafter && tool_model_fit(&m[i], memory, &share) < TOOL_FROM_DISK) {
            char room[16];
            printf("%s %s with a drafter: about %s tokens/s where three of four drafts are right; "
                   "add\n"
                   "  --draft hf:%s\n",
                   m[i].name, m[i].code,
                   speed(m[i].drafts * tool_model_rate(&m[i], 1, rate, 1e9), room), m[i].drafter);
        }
    puts("Speeds are computed; the repositories were looked up in November 2026, the files were "
         "not run.  See docs/use/models.md.");
}

/* Tokens a second by the speed of the disk. */
static void write_rates(struct str *out, const struct tool_model *m, double share,
                        const struct cli_rate *r)
{
    char name[32];
    write_open(out, '{');
    for (int d = 0; d < N_DISKS; d++) {
        snprintf(name, sizeof name, "%g GB/s", disk_gb[d]);
        write_member_significant(out, name, 4,
                                 tool_model_rate(m, share, r->bytes_per_s, disk_gb[d] * 1e9));
    }
    write_close(out, '}');
}

static void print_json(const struct cpu_machine *machine, uint64_t memory, const struct cli_rate *r)
{
    size_t n;
    const struct tool_model *m = tool_models(&n);
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_member_uint(&out, "memory_bytes", machine->memory_bytes);
    write_member_uint(&out, "free_bytes", memory);
    write_member_significant(&out, "read_bytes_per_s", 6, r->bytes_per_s);
    write_member_bool(&out, "measured", r->measured);
    write_member_int(&out, "busy_rounds", r->n_busy);
    write_key(&out, "models");
    write_open(&out, '[');
    for (size_t i = 0; i < n; i++) {
        double share;
        const enum tool_fit fit = tool_model_fit(&m[i], memory, &share);
        write_open(&out, '{');
        write_member(&out, "model", m[i].name);
        write_member(&out, "code", m[i].code);
        write_member(&out, "fits", fits[fit]);
        write_member_uint(&out, "need_bytes", m[i].need_mb * 1000000);
        write_member_fixed(&out, "token_bytes", 0, 1e9 / tool_model_rate(&m[i], 1, 1e9, 1e9));
        write_member_significant(&out, "experts_in_memory", 4,
                                 fit == TOOL_TOO_LARGE || !m[i].n_experts ? 0 : share);
        write_member(&out, "hub", m[i].hub ? m[i].hub : "");
        write_member(&out, "drafter", m[i].drafter ? m[i].drafter : "");
        write_member_significant(&out, "draft_factor", 6, m[i].drafts);
        write_key(&out, "tokens_per_s");
        if (fit == TOOL_FROM_DISK)
            write_rates(&out, &m[i], share, r);
        else if (fit == TOOL_TOO_LARGE)
            write_null(&out);
        else
            write_significant(&out, 4, tool_model_rate(&m[i], 1, r->bytes_per_s, 1e9));
        write_close(&out, '}');
    }
    write_close(&out, ']');
    write_close(&out, '}');
    cli_json_end(&out, "\n");
}

void cli_models_short(uint64_t memory, double rate)
{
    size_t n;
    const struct tool_model *m = tool_models(&n), *best = NULL;
    double share, share_of_best = 1;
    enum tool_fit fit_of_best = TOOL_TOO_LARGE;
    for (size_t i = 0; i < n; i++) {
        const enum tool_fit fit = tool_model_fit(&m[i], memory, &share);
        if (!best || fit < fit_of_best || (fit == fit_of_best && fit == TOOL_FITS)) {
            best = &m[i];
            fit_of_best = fit;
            share_of_best = share;
        }
        if (i + 1 < n && strcmp(m[i + 1].name, m[i].name) == 0)
            continue;
        char tokens[48];
        add_speed(tokens, best, fit_of_best, share_of_best, rate);
        printf("  %-18s %-8s ", best->name, best->code);
        if (fit_of_best == TOOL_TOO_LARGE)
            printf("needs %.1f GiB of memory\n", (double)best->need_mb * 1e6 / gib);
        else
            printf("about %s tokens a second%s%s\n", tokens,
                   fit_of_best == TOOL_TIGHT ? ", memory is tight" : "",
                   fit_of_best == TOOL_FROM_DISK ? " with a disk of 1, 3.5, 7 GB/s" : "");
        best = NULL;
        fit_of_best = TOOL_TOO_LARGE;
    }
}

/* The rate that was given, or measured; CLI_OK, or the exit code after saying why. */
static int find_rate(struct cli *c, const struct cpu_machine *machine, struct cli_rate *r)
{
    struct pool *pool = NULL;
    struct err err;
    const double given = ingle_config_number(c->config, "rate");
    *r = (struct cli_rate){.bytes_per_s = given * 1e9};
    if (given > 0)
        return CLI_OK;
    int threads = (int)ingle_config_number(c->config, "threads");
    threads = threads ? threads : cpu_default_threads(machine);
    ingle_status st = pool_create(&pool, threads, !ingle_config_flag(c->config, "no-pin"), &err);
    if (!st)
        st = cli_memory_rate(pool, machine->n_logical, r, &err);
    pool_free(pool);
    return st ? cli_fail_err(c, &err) : CLI_OK;
}

int cli_models(struct cli *c)
{
    struct cpu_machine machine;
    struct cli_rate r;
    size_t n;
    if (c->n_arg)
        return cli_usage(
            c,
            "'models' takes no argument such as '%s'; 'ingle pull --have' lists what was fetched",
            c->arg[0]);
    cpu_machine_read(&machine);
    const uint64_t given = (uint64_t)ingle_config_number(c->config, "memory"),
                   memory = given ? given : machine.memory_free_bytes;
    const int rc = find_rate(c, &machine, &r);
    if (rc)
        return rc;
    if (ingle_config_flag(c->config, "json")) {
        print_json(&machine, memory, &r);
        return CLI_OK;
    }
    if (given)
        printf("memory           %.1f GiB (--memory)\n", (double)memory / gib);
    else
        printf("memory           %.1f GiB, free %.1f GiB\n", (double)machine.memory_bytes / gib,
               (double)memory / gib);
    cli_memory_rate_print(&r);
    printf("\n%-18s %-8s %7s  %-5s %14s  %s\n", "model", "code", "GiB", "fits", "tokens/s",
           "command");
    const struct tool_model *m = tool_models(&n);
    for (size_t i = 0; i < n; i++)
        print_line(&m[i], c->program, memory, r.bytes_per_s);
    print_notes(memory, r.bytes_per_s);
    return CLI_OK;
}
