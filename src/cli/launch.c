/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch - what launchers and options of others say of one model over several processes: vLLM's
 * --nnodes and its kin, ranks of Slurm, LeaderWorkerSet and mpirun, ds4's roles, lucebox's shards.
 * Each is a stage here: the first process dials the others, which listen.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/opt.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 64, USUAL_PORT = 29501, TEXT = 300 };

static const char *const names[CLI_LAUNCH_OPTIONS] = {
    [CLI_LAUNCH_NODES] = "nnodes",
    [CLI_LAUNCH_RANK] = "node-rank",
    [CLI_LAUNCH_HOST] = "master-addr",
    [CLI_LAUNCH_PORT] = "master-port",
    [CLI_LAUNCH_STAGES] = "pipeline-parallel-size",
    [CLI_LAUNCH_ROLE] = "role",
    [CLI_LAUNCH_COORDINATOR] = "coordinator",
    [CLI_LAUNCH_LAYERS] = "layers",
    [CLI_LAUNCH_LISTEN] = "listen",
    [CLI_LAUNCH_MODE] = "backend-ipc-mode",
    [CLI_LAUNCH_BEGINS] = "layer-begins",
    [CLI_LAUNCH_ENDS] = "layer-ends",
    [CLI_LAUNCH_HIDDEN] = "hidden",
    [CLI_LAUNCH_VOCAB] = "vocab",
    [CLI_LAUNCH_ROWS] = "max-tokens",
    [CLI_LAUNCH_STREAM] = "stream-fd",
    [CLI_LAUNCH_CTX] = "max-ctx",
};

/* A stage: [from, to) of n_layers, the rank-th of n (0: not known). */
struct part {
    long rank, n, from, to;
    char listen[TEXT];      /* where it listens; "" for the first one */
    char ends[RANKS * 8];   /* of the first one: where each stage ends; "": not known */
    char peers[RANKS * 80]; /* of the first one: where the others listen; "": not known */
    const char *spelt;
};

/* ---- what was typed ---- */

void cli_launch_take(struct cli *c, const struct cli_foreign *f, const char *spelt,
                     const char *value, const char *second)
{
    struct cli_launch *l = &c->launch;
    for (int i = 0; i < CLI_LAUNCH_OPTIONS; i++) {
        if (strcmp(names[i], f->name) != 0)
            continue;
        l->text[i] = value;
        l->second[i] = second;
        l->why[i] = cli_foreign_why(f);
        snprintf(l->spelt[i], sizeof l->spelt[i], "%s", spelt);
    }
}

bool cli_launch_has_two(const struct cli_foreign *f, const char *next)
{
    const bool pair = strcmp(f->name, "coordinator") == 0 || strcmp(f->name, "listen") == 0;
    return pair && next && *next && strspn(next, "0123456789") == strlen(next);
}

static bool number(const char *text, long most, long *out)
{
    if (!text || !*text || strlen(text) > 9 || strspn(text, "0123456789") != strlen(text))
        return false;
    *out = strtol(text, NULL, 10);
    return *out <= most;
}

/* The number of an option that was typed, else *out stays. */
static ingle_status typed_number(const struct cli_launch *l, enum cli_launch_option which,
                                 long least, long most, long *out, struct err *err)
{
    const char *text = l->text[which];
    if (!text || (number(text, most, out) && *out >= least))
        return INGLE_OK;
    return err_set(err, INGLE_ARG, "%s: '%.40s' is no number from %ld to %ld", l->spelt[which],
                   text, least, most);
}

/* ---- ranks ---- */

struct ranks {
    long n, rank;
    const char *of; /* whose variables */
};

static bool variable_pair(const char *size, const char *rank, const char *of, struct ranks *out)
{
    struct ranks r = {.of = of};
    if (!number(getenv(size), 1 << 20, &r.n) || !number(getenv(rank), 1 << 20, &r.rank))
        return false;
    *out = r;
    return true;
}

static bool find_ranks(struct ranks *out)
{
    return variable_pair("LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LeaderWorkerSet", out) ||
           variable_pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun", out) ||
           variable_pair("PMI_SIZE", "PMI_RANK", "mpirun", out) ||
           variable_pair("SLURM_NTASKS", "SLURM_PROCID", "Slurm", out);
}

/* The k-th host of Slurm's list: "a,b[01-03,7],c". */
static bool nth_host(const char *list, long k, char *out, size_t n)
{
    while (*list) {
        const size_t prefix = strcspn(list, ",[");
        const char *at = list + prefix;
        if (*at != '[') {
            if (k-- == 0)
                return snprintf(out, n, "%.*s", (int)prefix, list) < (int)n && prefix;
            list = at + (*at == ',');
            continue;
        }
        for (at++; *at && *at != ']'; at += *at == ',') {
            char *end;
            const char *digits = at;
            const long from = strtol(at, &end, 10);
            const int width = (int)(end - digits);
            const long to = *end == '-' ? strtol(end + 1, &end, 10) : from;
            if (end == digits || to < from || to - from > 1 << 16)
                return false;
            if (k <= to - from)
                return snprintf(out, n, "%.*s%0*ld", (int)prefix, list, width, from + k) < (int)n;
            k -= to - from + 1;
            at = end;
            if (*at && *at != ',' && *at != ']')
                return false;
        }
        if (!*at || (at[1] && at[1] != ',')) /* a name that goes on after its numbers */
            return false;
        list = at + 1 + (at[1] == ',');
    }
    return false;
}

/* Of a group: the leader is NAME-0.SERVICE..., its k-th worker NAME-0-k.SERVICE... */
static bool lws_host(long k, char *out, size_t n)
{
    const char *leader = getenv("LWS_LEADER_ADDRESS");
    const size_t dot = leader ? strcspn(leader, ".") : 0;
    return dot && snprintf(out, n, "%.*s-%ld%s", (int)dot, leader, k, leader + dot) < (int)n;
}

/* All of them on this host. */
static bool is_one_host(const struct ranks *r)
{
    /* "": the number of hosts, not of processes on this one */
    static const struct { const char *of, *local, *hosts; } vars[] = {
        {"mpirun", "OMPI_COMM_WORLD_LOCAL_SIZE", ""}, /* Open MPI */
        {"mpirun", "MPI_LOCALNRANKS", ""},            /* MPICH, Intel MPI */
        {"Slurm", "", "SLURM_STEP_NUM_NODES"},
        {"Slurm", "", "SLURM_JOB_NUM_NODES"}};
    for (size_t i = 0; r->of && i < sizeof vars / sizeof *vars; i++) {
        long n;
        const bool hosts = *vars[i].hosts;
        if (strcmp(vars[i].of, r->of) == 0 &&
            number(getenv(hosts ? vars[i].hosts : vars[i].local), 1 << 20, &n))
            return n == (hosts ? 1 : r->n);
    }
    return false;
}

/* Where the k-th process listens, as the first one dials it. */
static bool peer_address(const struct ranks *r, long k, long port, char *out, size_t n)
{
    char host[TEXT] = "", other[TEXT];
    bool known = false;
    const char *nodes = getenv("SLURM_STEP_NODELIST") ? getenv("SLURM_STEP_NODELIST")
                                                      : getenv("SLURM_JOB_NODELIST");
    if (is_one_host(r))
        return snprintf(out, n, "127.0.0.1:%ld", port + k) < (int)n;
    if (r->of && strcmp(r->of, "LeaderWorkerSet") == 0)
        known = lws_host(k, host, sizeof host);
    else if (nodes) /* one process a host */
        known =
            nth_host(nodes, k, host, sizeof host) && !nth_host(nodes, r->n, other, sizeof other);
    return known && snprintf(out, n, "%s:%ld", host, port) < (int)n;
}

static ingle_status read_ranks(const struct cli_launch *l, struct ranks *r, struct err *err)
{
    long n = 0, stages = 0;
    const bool there = find_ranks(r);
    ingle_status st = typed_number(l, CLI_LAUNCH_NODES, 1, RANKS, &n, err);
    if (!st)
        st = typed_number(l, CLI_LAUNCH_STAGES, 1, RANKS, &stages, err);
    if (!st && !n && stages <= 1)
        r->n = 1; /* a launcher's variables by themselves ask for nothing */
    if (!st && n && (!there || r->n != n))
        *r = (struct ranks){.n = n};
    const char *spelt = n ? l->spelt[CLI_LAUNCH_NODES] : l->spelt[CLI_LAUNCH_STAGES];
    if (!st && r->n > RANKS)
        st = err_set(err, INGLE_ARG, "%s: %ld processes are more than %d", spelt, r->n, RANKS);
    if (!st && n > 1 && !l->text[CLI_LAUNCH_RANK] && !r->of)
        st = err_set(err, INGLE_ARG, "%s %ld needs --node-rank: which of them this process is",
                     spelt, n);
    if (!st)
        st = typed_number(l, CLI_LAUNCH_RANK, 0, r->n > 1 ? r->n - 1 : RANKS, &r->rank, err);
    if (!st && stages > 1 && r->n > 1 && stages != r->n)
        st = err_set(err, INGLE_ARG, "%s %ld: there are %ld processes, and each computes one stage",
                     l->spelt[CLI_LAUNCH_STAGES], stages, r->n);
    if (!st && r->n > 1 && r->rank >= r->n)
        st = err_set(err, INGLE_ARG, "rank %ld is not below %ld, the number of processes", r->rank,
                     r->n);
    return st;
}

static ingle_status part_of_ranks(const struct cli_launch *l, const struct ranks *r, long n_layers,
                                  struct part *p, struct err *err)
{
    long port = USUAL_PORT;
    const ingle_status st = typed_number(l, CLI_LAUNCH_PORT, 1, 65535 - RANKS, &port, err);
    if (st)
        return st;
    if (r->n > n_layers)
        return err_set(err, INGLE_ARG, "%ld stages are more than the %ld layers of the model", r->n,
                       n_layers);
    p->n = r->n;
    p->rank = r->rank;
    p->from = n_layers * r->rank / r->n;
    p->to = n_layers * (r->rank + 1) / r->n;
    p->spelt = l->text[CLI_LAUNCH_NODES] ? l->spelt[CLI_LAUNCH_NODES] : l->spelt[CLI_LAUNCH_STAGES];
    if (r->rank) {
        if (is_one_host(r))
            snprintf(p->listen, sizeof p->listen, "127.0.0.1:%ld", port + r->rank);
        else
            snprintf(p->listen, sizeof p->listen, "0.0.0.0:%ld", port);
        return INGLE_OK;
    }
    for (long k = 0; k < r->n; k++) {
        const size_t have = strlen(p->ends);
        snprintf(p->ends + have, sizeof p->ends - have, "%s%ld", k ? "," : "",
                 n_layers * (k + 1) / r->n);
    }
    for (long k = 1; k < r->n; k++) {
        char at[TEXT];
        const size_t have = strlen(p->peers);
        if (!peer_address(r, k, port, at, sizeof at) ||
            snprintf(p->peers + have, sizeof p->peers - have, "%s%s", k > 1 ? "," : "", at) >=
                (int)(sizeof p->peers - have)) {
            p->peers[0] = 0;
            break;
        }
    }
    return INGLE_OK;
}

/* ---- ds4: --role, --layers A:B or A:output, the last one included ---- */

static ingle_status part_of_role(const struct cli_launch *l, const char *layers, long n_layers,
                                 struct part *p, struct err *err)
{
    const char *role = l->text[CLI_LAUNCH_ROLE], *colon = layers ? strchr(layers, ':') : NULL;
    const bool first = strcmp(role, "coordinator") == 0;
    char from[16];
    long last = n_layers - 1;
    if (!first && strcmp(role, "worker") != 0)
        return err_set(err, INGLE_ARG, "%s: '%.40s' is neither coordinator nor worker",
                       l->spelt[CLI_LAUNCH_ROLE], role);
    if (!colon || (size_t)(colon - layers) >= sizeof from)
        return err_set(err, INGLE_ARG,
                       "%s %s needs --layers A:B (B included) or --layers A:output, not '%.40s'",
                       l->spelt[CLI_LAUNCH_ROLE], role, layers ? layers : "");
    snprintf(from, sizeof from, "%.*s", (int)(colon - layers), layers);
    if (!number(from, n_layers - 1, &p->from) ||
        (strcmp(colon + 1, "output") != 0 && !number(colon + 1, n_layers - 1, &last)) ||
        last < p->from)
        return err_set(err, INGLE_ARG,
                       "--layers %.40s: no layers A:B (B included) of the model's 0 to %ld", layers,
                       n_layers - 1);
    if (first && p->from)
        return err_set(err, INGLE_ARG, "--layers %.40s: the coordinator begins with layer 0",
                       layers);
    if (first && last == n_layers - 1)
        return err_set(err, INGLE_ARG, "--layers %.40s: no layer is left for the others", layers);
    p->to = last + 1;
    p->rank = !first;
    p->spelt = l->spelt[CLI_LAUNCH_ROLE];
    const char *host = l->text[CLI_LAUNCH_LISTEN], *port = l->second[CLI_LAUNCH_LISTEN];
    if (first)
        return INGLE_OK;
    if (host)
        snprintf(p->listen, sizeof p->listen, "%s%s%s", host, port ? ":" : "", port ? port : "");
    else if (l->second[CLI_LAUNCH_COORDINATOR])
        snprintf(p->listen, sizeof p->listen, "0.0.0.0:%s", l->second[CLI_LAUNCH_COORDINATOR]);
    else
        snprintf(p->listen, sizeof p->listen, "0.0.0.0:%d", USUAL_PORT);
    return INGLE_OK;
}

/* ---- lucebox: --backend-ipc-mode, shards that join ---- */

static ingle_status part_of_shards(const struct cli *c, const struct ingle_model_info *m,
                                   struct part *p, struct err *err)
{
    const struct cli_launch *l = &c->launch;
    const char *mode = l->text[CLI_LAUNCH_MODE], *b = l->text[CLI_LAUNCH_BEGINS],
               *e = l->text[CLI_LAUNCH_ENDS];
    const bool deepseek = strcmp(mode, "deepseek4-target-shard") == 0;
    const char *want = deepseek ? "deepseek4" : "gemma4";
    if (strcmp(m->arch, want) != 0)
        return err_set(err, INGLE_ARG, "%s=%s: the model is %s", l->spelt[CLI_LAUNCH_MODE], mode,
                       m->arch);
    if (strcmp(c->command, "worker") != 0) /* others have a --layer-ends of their own */
        return err_set(err, INGLE_ARG, "%s=%s is an option of 'ingle worker', not of '%s'",
                       l->spelt[CLI_LAUNCH_MODE], mode, c->command);
    if (!b || !e)
        return err_set(err, INGLE_ARG, "%s=%s needs --layer-begins and --layer-ends",
                       l->spelt[CLI_LAUNCH_MODE], mode);
    long before = -1;
    for (int i = 0;; i++) {
        char one[2][16];
        const size_t nb = strcspn(b, ","), ne = strcspn(e, ",");
        long from, to;
        snprintf(one[0], sizeof one[0], "%.*s", (int)(nb < 15 ? nb : 15), b);
        snprintf(one[1], sizeof one[1], "%.*s", (int)(ne < 15 ? ne : 15), e);
        if (!number(one[0], m->n_layers, &from) || !number(one[1], m->n_layers, &to) || from >= to)
            return err_set(err, INGLE_ARG,
                           "shard %d: --layer-begins '%s' and --layer-ends '%s' are no layers of "
                           "the model's 0 to %lld (the end is not included)",
                           i, one[0], one[1], (long long)m->n_layers);
        if (!from)
            return err_set(err, INGLE_ARG,
                           "shard %d begins with layer 0 (%s): the engine itself (ingle run or "
                           "serve, with --stages) has layer 0, the embedding and the head; begin "
                           "with layer 1 or a later one",
                           i, l->spelt[CLI_LAUNCH_BEGINS]);
        if (before >= 0 && from != before)
            return err_set(
                err, INGLE_ARG,
                "shard %d begins at layer %ld, but the one before it ends at %ld: shards "
                "of a process join",
                i, from, before);
        p->from = i ? p->from : from;
        p->to = before = to;
        b += nb;
        e += ne;
        if (!*b && !*e)
            break;
        if (!*b || !*e)
            return err_set(err, INGLE_ARG,
                           "--layer-begins and --layer-ends have different numbers of shards");
        b++;
        e++;
    }
    long v;
    const struct {
        enum cli_launch_option which;
        long long is;
    } sizes[] = {{CLI_LAUNCH_HIDDEN, m->n_embd}, {CLI_LAUNCH_VOCAB, m->n_vocab}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (l->text[sizes[i].which] &&
            (!number(l->text[sizes[i].which], 100000000, &v) || v != sizes[i].is))
            return err_set(err, INGLE_ARG, "%s: '%.40s' is not %lld, which the model's file says",
                           l->spelt[sizes[i].which], l->text[sizes[i].which], sizes[i].is);
    p->rank = 1; /* the process that starts it has the first layers, or none */
    p->spelt = l->spelt[CLI_LAUNCH_MODE];
    if (l->text[CLI_LAUNCH_STREAM])
        snprintf(p->listen, sizeof p->listen, "fd:%.20s", l->text[CLI_LAUNCH_STREAM]);
    else
        snprintf(p->listen, sizeof p->listen, "ADDRESS");
    return INGLE_OK;
}

/* ---- what it is here ---- */

static bool asks(const struct cli_launch *l)
{
    for (int i = 0; i < CLI_LAUNCH_OPTIONS; i++)
        if (l->text[i])
            return true;
    return false;
}

static void note_all(struct cli *c)
{
    const struct cli_launch *l = &c->launch;
    for (int i = 0; i < CLI_LAUNCH_OPTIONS; i++)
        if (l->text[i])
            cli_note_add(&c->notes, l->spelt[i], l->text[i], l->why[i]);
}

ingle_status cli_launch_check(struct cli *c, struct err *err)
{
    struct cli_launch *l = &c->launch;
    struct ranks r = {0};
    if (!asks(l))
        return INGLE_OK;
    if (l->text[CLI_LAUNCH_MODE]) {
        struct ingle_error error;
        if (strcmp(l->text[CLI_LAUNCH_MODE], "deepseek4-target-shard") != 0 &&
            strcmp(l->text[CLI_LAUNCH_MODE], "gemma4-target-shard") != 0)
            return err_set(err, INGLE_ARG,
                           "ingle has no %s %.40s: known are deepseek4-target-shard and "
                           "gemma4-target-shard; experts are computed by 'ingle worker -m FILE "
                           "--listen ADDRESS' (moe-expert and deepseek4-expert are other names of "
                           "that command), which the engine names with --experts-worker ADDRESS",
                           l->spelt[CLI_LAUNCH_MODE], l->text[CLI_LAUNCH_MODE]);
        l->stage = true;
        if (c->n_arg == 1 && !ingle_config_is_set(c->config, "model")) {
            if (ingle_config_set(c->config, c->command, "model", c->arg[0], &error))
                return err_set(err, INGLE_ARG, "%s", error.text);
            c->n_arg = 0;
        }
        return INGLE_OK;
    }
    if (l->text[CLI_LAUNCH_ROLE]) {
        l->stage = true;
        return INGLE_OK;
    }
    static const struct {
        enum cli_launch_option which;
        const char *of;
    } parts[] = {{CLI_LAUNCH_COORDINATOR, "role"},      {CLI_LAUNCH_LAYERS, "role"},
                 {CLI_LAUNCH_LISTEN, "role"},           {CLI_LAUNCH_BEGINS, "backend-ipc-mode"},
                 {CLI_LAUNCH_ENDS, "backend-ipc-mode"}, {CLI_LAUNCH_STREAM, "backend-ipc-mode"}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (l->text[parts[i].which])
            return err_set(err, INGLE_ARG, "'%s' takes no %s without --%s", c->command,
                           l->spelt[parts[i].which], parts[i].of);
    const ingle_status st = read_ranks(l, &r, err);
    if (st)
        return st;
    l->stage = r.n > 1;
    l->once = l->stage && r.of;
    if (!l->stage)
        note_all(c);
    return INGLE_OK;
}

static void print_part(const struct cli *c, const struct part *p)
{
    char of[40] = "this process";
    if (p->n)
        snprintf(of, sizeof of, "rank %ld of %ld", p->rank, p->n);
    if (!c->screen.progress)
        return;
    if (p->rank)
        cli_line("ingle: note: %s: %s has layers %ld to %ld and listens on %s", p->spelt, of,
                 p->from, p->to - 1, p->listen);
    else
        cli_line("ingle: note: %s: %s has layers %ld to %ld and dials %s", p->spelt, of, p->from,
                 p->to - 1, ingle_config_text(c->config, "stages", 0));
}

static ingle_status put(struct cli *c, const char *command, const char *name, const char *value,
                        struct err *err)
{
    struct ingle_error error;
    if (ingle_config_is_set(c->config, name))
        return INGLE_OK; /* ours goes first */
    return ingle_config_set(c->config, command, name, value, &error)
               ? err_set(err, error.status, "%s", error.text)
               : INGLE_OK;
}

/* A worker's own --listen: ADDRESS, or HOST PORT as ds4 has it. */
static ingle_status take_listen(struct cli *c, struct part *p, struct err *err)
{
    struct ingle_error error;
    long port;
    if (!cli_takes(c->command, "listen") || !ingle_config_is_set(c->config, "listen"))
        return INGLE_OK;
    const char *own = ingle_config_text(c->config, "listen", 0);
    snprintf(p->listen, sizeof p->listen, "%s", own);
    if (!c->launch.text[CLI_LAUNCH_ROLE] || strchr(own, ':') || c->n_arg != 1)
        return INGLE_OK;
    if (!number(c->arg[0], 65535, &port))
        return err_set(err, INGLE_ARG,
                       "--listen %.40s %.40s: the port is no number from 0 to 65535", own,
                       c->arg[0]);
    snprintf(p->listen, sizeof p->listen, "%s:%ld", own, port);
    return ingle_config_set(c->config, "worker", "listen", p->listen, &error)
               ? err_set(err, error.status, "%s", error.text)
               : INGLE_OK;
}

ingle_status cli_launch(struct cli *c, const char **command, struct err *err)
{
    const struct cli_launch *l = &c->launch;
    struct part p = {.rank = 0, .spelt = ""};
    struct ingle_model_info info;
    struct ingle_error error;
    struct ingle_model *m = NULL;
    char text[48];
    ingle_status st = INGLE_OK;
    *command = NULL;
    if (!l->stage)
        return INGLE_OK;
    if (cli_open_model(c, &m, &error))
        return err_set(err, error.status, "%s", error.text);
    ingle_model_info(m, &info);
    const char *own = cli_takes(c->command, "layers") && ingle_config_is_set(c->config, "layers")
                          ? ingle_config_text(c->config, "layers", 0)
                          : NULL;
    if (l->text[CLI_LAUNCH_MODE]) {
        st = part_of_shards(c, &info, &p, err);
    } else if (l->text[CLI_LAUNCH_ROLE]) {
        st = part_of_role(l, l->text[CLI_LAUNCH_LAYERS] ? l->text[CLI_LAUNCH_LAYERS] : own,
                          (long)info.n_layers, &p, err);
    } else {
        struct ranks r = {0};
        st = read_ranks(l, &r, err);
        if (!st)
            st = part_of_ranks(l, &r, (long)info.n_layers, &p, err);
    }
    ingle_model_close(m);
    if (!st && !p.rank && !p.peers[0] && !ingle_config_is_set(c->config, "stages"))
        st = err_set(err, INGLE_ARG,
                     "%s: the first process dials the others, and nothing says where they listen: "
                     "--stages HOST:PORT,...",
                     p.spelt);
    if (!st && !p.rank && p.peers[0])
        st = put(c, c->command, "stages", p.peers, err);
    if (!st && !p.rank && p.ends[0] && cli_takes(c->command, "layer-ends"))
        st = put(c, c->command, "layer-ends", p.ends, err);
    snprintf(text, sizeof text, "%ld:%ld", p.from, p.to);
    if (!st && p.rank)
        st = take_listen(c, &p, err);
    if (!st && p.rank)
        st = put(c, "worker", "stage", text, err);
    if (!st && p.rank)
        st = put(c, "worker", "listen", p.listen, err);
    if (!st && p.rank && l->text[CLI_LAUNCH_CTX] && cli_takes("worker", "ctx"))
        st = put(c, "worker", "ctx", l->text[CLI_LAUNCH_CTX], err);
    if (!st && p.rank) {
        *command = "worker";
        c->n_arg = 0; /* the first process has the prompt */
    }
    if (!st)
        print_part(c, &p);
    return st;
}
