/* SPDX-License-Identifier: Apache-2.0 */
/* pull - files from a hub, for `ingle pull` and for -m and --draft hf:OWNER/NAME:CODE. */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/hub.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/plain.h"
#include "base/size.h"
#include "base/write.h"
#include "hub/hub.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TOKEN = 4096 };
#define USUAL_HUB "https://huggingface.co"

struct access {
    struct cli *c;
    struct str directory, address, cache;
    char *token;
    char token_from[200];
    struct ingle_callbacks callbacks;
    struct report_sink sink;
};

static void release(struct access *a)
{
    str_release(&a->directory);
    str_release(&a->address);
    str_release(&a->cache);
    if (a->token)
        memset(a->token, 0, strlen(a->token));
    mem_free(a->token);
}

/* ---- signals: a fetch ends in order, and the next call goes on ---- */

static volatile sig_atomic_t n_signals;

static void on_signal(int number)
{
    (void)number;
    if (++n_signals > 1)
        _exit(CLI_INTERRUPTED);
}

enum { N_CAUGHT = 3 };
static const int caught[N_CAUGHT] = {SIGINT, SIGTERM, SIGHUP};

/* Those that the starter ignores stay so; whoever handles signals already also says when to
 * stop. */
static void catch_signals(struct sigaction before[N_CAUGHT])
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_CAUGHT; i++)
        if (!sigaction(caught[i], NULL, &before[i]) && before[i].sa_handler == SIG_DFL)
            sigaction(caught[i], &action, NULL);
}

static void let_signals(const struct sigaction before[N_CAUGHT])
{
    for (int i = 0; i < N_CAUGHT; i++)
        if (before[i].sa_handler == SIG_DFL)
            sigaction(caught[i], &before[i], NULL);
}

static int on_progress(void *arg, const char *job, double done, double total)
{
    const struct access *a = arg;
    return n_signals > 0 ||
           (a->callbacks.progress && a->callbacks.progress(a->callbacks.arg, job, done, total));
}

/* The reason of a choice is printed without -v, too. */
static void on_report(void *arg, ingle_report_level level, const char *kind, const char *subject,
                      const char *text)
{
    const struct access *a = arg;
    if (level == INGLE_REPORT_NOTE && a->c->screen.progress) {
        cli_screen_clear(&a->c->screen);
        fprintf(stderr, "ingle: note: %s: %s\n", subject, text);
    } else if (a->callbacks.report) {
        a->callbacks.report(a->callbacks.arg, level, kind, subject, text);
    }
}

/* ---- options, and the variables of Hugging Face's tools ---- */

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool is_true(const char *value)
{
    return value && (strcmp(value, "1") == 0 || strcasecmp(value, "on") == 0 ||
                     strcasecmp(value, "yes") == 0 || strcasecmp(value, "true") == 0);
}

/* Blanks around a token are no part of it. */
static ingle_status check_token(struct access *a, const char *from, struct err *err)
{
    char *s = a->token;
    s[strcspn(s, "\r\n")] = 0;
    const size_t skip = strspn(s, " \t");
    memmove(s, s + skip, strlen(s + skip) + 1);
    for (size_t n = strlen(s); n && (s[n - 1] == ' ' || s[n - 1] == '\t'); n--)
        s[n - 1] = 0;
    for (const char *p = s; *p; p++)
        if (*p <= ' ' || *p > '~')
            return err_set(err, INGLE_FORMAT, "'%.200s' has a byte that no token has", from);
    return *s ? INGLE_OK
              : err_set(err, INGLE_FORMAT, "'%.200s' has no token in its first line", from);
}

/* The first line of the file. */
static ingle_status read_token(struct access *a, const char *path, struct err *err)
{
    size_t n;
    const ingle_status st = file_slurp(path, MOST_TOKEN, &a->token, &n, err);
    return st ? st : check_token(a, path, err);
}

/* $HF_HOME, or where it is by default; with what is below it. */
static bool hf_folder(struct str *out, const char *inner)
{
    const char *own = variable("HF_HOME"), *cache = variable("XDG_CACHE_HOME"),
               *home = variable("HOME");
    if (own)
        str_addf(out, "%s/%s", own, inner);
    else if (cache && *cache == '/')
        str_addf(out, "%s/huggingface/%s", cache, inner);
    else if (home && *home == '/')
        str_addf(out, "%s/.cache/huggingface/%s", home, inner);
    return out->n > 0;
}

/* --hub-token-file, $HF_TOKEN, else the file of `hf auth login`, which is for the usual hub. */
static ingle_status find_token(struct access *a, bool own_hub, struct err *err)
{
    static const char *const name[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    const char *file = ingle_config_text(a->c->config, "hub-token-file", 0),
               *path = variable("HF_TOKEN_PATH");
    if (file)
        return read_token(a, file, err);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (variable(name[i])) {
            a->token = mem_strdup(variable(name[i]));
            snprintf(a->token_from, sizeof a->token_from, "$%s", name[i]);
            return a->token ? check_token(a, name[i], err)
                            : err_set(err, INGLE_NOMEM, "no memory for a token");
        }
    struct str s;
    str_init(&s);
    if (path)
        str_adds(&s, path);
    else
        (void)hf_folder(&s, "token");
    ingle_status st = INGLE_OK;
    if (own_hub && !is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN")) && s.n &&
        access(s.at, R_OK) == 0) {
        snprintf(a->token_from, sizeof a->token_from, "'%.190s'", s.at);
        if (read_token(a, s.at, NULL)) { /* nobody asked for it */
            mem_free(a->token);
            a->token = NULL;
        }
    }
    str_release(&s);
    return st;
}

static void find_cache(struct access *a)
{
    const char *hub = variable("HF_HUB_CACHE"), *old = variable("HUGGINGFACE_HUB_CACHE");
    if (hub || old)
        str_adds(&a->cache, hub ? hub : old);
    else
        (void)hf_folder(&a->cache, "hub");
}

static ingle_status find_directory(const struct cli *c, struct access *a, struct err *err)
{
    const char *asked = ingle_config_text(c->config, "hub-dir", 0),
               *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (asked)
        str_adds(&a->directory, asked);
    else if (cache && *cache == '/')
        str_addf(&a->directory, "%s/ingle/hub", cache);
    else if (home && *home == '/')
        str_addf(&a->directory, "%s/.cache/ingle/hub", home);
    else
        return err_set(err, INGLE_ARG,
                       "there is no home folder: --hub-dir must say where files go");
    return str_ok(&a->directory)
               ? INGLE_OK
               : err_set(err, INGLE_NOMEM, "no memory for the folder of the hub's files");
}

/* --hub, $HF_ENDPOINT, else the usual one.  *named: the variable decided. */
static ingle_status find_hub(struct access *a, bool *named, struct err *err)
{
    const char *address = ingle_config_text(a->c->config, "hub", 0),
               *mirror = variable("HF_ENDPOINT");
    *named = mirror && !ingle_config_is_set(a->c->config, "hub");
    if (*named)
        address = mirror;
    if (strncmp(address, "https://", 8) != 0 && strncmp(address, "http://", 7) != 0)
        return err_set(err, INGLE_ARG,
                       "'%s%.200s' is not an address such as https://huggingface.co",
                       *named ? "HF_ENDPOINT=" : "--hub ", address);
    size_t n = strlen(address);
    while (n && address[n - 1] == '/')
        n--;
    str_add(&a->address, address, n);
    return str_ok(&a->address) ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for an address");
}

/* Which encoders come with a model; NULL: none, or others than the hub's. */
static const char *wanted_mmproj(const struct cli *c)
{
    const char *type = ingle_config_text(c->config, "mmproj-type", 0);
    const bool own = strcmp(ingle_config_text(c->config, "mmproj", 0), "auto") != 0;
    return own || strcmp(type, "off") == 0 ? NULL : type;
}

/* What the options say; ended by release() also after a failure. */
static ingle_status read_options(struct cli *c, const struct ingle_callbacks *callbacks,
                                 struct access *a, struct hub_options *o, struct err *err)
{
    bool mirror = false;
    const bool own_offline = ingle_config_flag(c->config, "offline");
    const char *offline = is_true(variable("HF_HUB_OFFLINE"))         ? "$HF_HUB_OFFLINE"
                          : is_true(variable("TRANSFORMERS_OFFLINE")) ? "$TRANSFORMERS_OFFLINE"
                                                                      : NULL;
    *a = (struct access){.c = c, .callbacks = *callbacks, .sink = {on_report, on_progress, a}};
    str_init(&a->directory);
    str_init(&a->address);
    str_init(&a->cache);
    ingle_status st = find_hub(a, &mirror, err);
    const bool own_hub = !st && (mirror || strcmp(a->address.at, USUAL_HUB) == 0);
    if (!st)
        st = find_directory(c, a, err);
    if (!st)
        st = find_token(a, own_hub, err);
    find_cache(a);
    if (!st && !str_ok(&a->cache))
        st = err_set(err, INGLE_NOMEM, "no memory for a path");
    if (!st && mirror && strcmp(a->address.at, USUAL_HUB) != 0 && c->screen.progress)
        fprintf(stderr, "ingle: note: the hub is %s ($HF_ENDPOINT)\n", a->address.at);
    *o = (struct hub_options){.address = a->address.at,
                              .revision = ingle_config_text(c->config, "hub-revision", 0),
                              .token = a->token,
                              .token_from = a->token_from[0] ? a->token_from : NULL,
                              .directory = a->directory.at,
                              .cache = a->cache.n ? a->cache.at : NULL,
                              .own_cache = own_hub,
                              .connections = (int)ingle_config_number(c->config, "hub-connections"),
                              .piece_bytes = (uint64_t)ingle_config_number(c->config, "hub-piece"),
                              .offline = own_offline || offline,
                              .offline_by = own_offline || !offline ? "--offline" : offline,
                              .mmproj = wanted_mmproj(c),
                              .sink = &a->sink};
    return st;
}

/* ---- models by their names ---- */

/* A lock that lasts as long as this program: nobody deletes what it uses. */
static void hold(const char *path)
{
    struct str s;
    struct stat is;
    str_init(&s);
    str_adds(&s, path);
    if (stat(path, &is) == 0 && S_ISDIR(is.st_mode))
        str_adds(&s, "/config.json");
    const int fd = str_ok(&s) ? open(s.at, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB))
        close(fd);
    str_release(&s);
}

static ingle_status pull(struct cli *c, const struct ingle_callbacks *callbacks, const char *name,
                         bool drafter, bool check, char **path, struct err *err)
{
    struct access a;
    struct hub_options o;
    struct sigaction before[N_CAUGHT];
    ingle_status st = read_options(c, callbacks, &a, &o, err);
    o.drafter = drafter;
    o.check = check && c->screen.progress;
    o.update = ingle_config_flag(c->config, "update");
    n_signals = 0;
    catch_signals(before);
    if (!st)
        st = hub_pull(name, &o, path, err);
    let_signals(before);
    release(&a);
    cli_screen_clear(&c->screen);
    return st;
}

void cli_hub_drop(struct cli *c)
{
    if (c->plan_folder)
        hub_head_drop(c->plan_folder);
    mem_free(c->plan_folder);
    c->plan_folder = NULL;
}

void cli_hub_plan(const struct cli *c, struct ingle_plan *plan)
{
    if (c->plan_folder)
        plan->tokens_low = plan->tokens_high = plan->disk_bytes_per_s = plan->read_bytes_per_s = 0;
}

/* For a plan the headers of a model do that was not pulled. */
static ingle_status plan_path(struct cli *c, const struct ingle_callbacks *callbacks,
                              const char *name, char **path, struct err *err)
{
    struct access a;
    struct hub_options o;
    struct sigaction before[N_CAUGHT];
    ingle_status st = read_options(c, callbacks, &a, &o, err);
    n_signals = 0;
    catch_signals(before);
    if (!st && (st = hub_find(name, &o, path, err)) == INGLE_NOTFOUND)
        st = o.offline ? hub_pull(name, &o, path, err)
                       : hub_head(name, &o, path, &c->plan_folder, err);
    let_signals(before);
    release(&a);
    cli_screen_clear(&c->screen);
    return st;
}

/* ---- what can never fit is not fetched ---- */

/* Whether the command loads the weights of its model. */
static bool loads(const struct cli *c)
{
    static const char *const word[] = {"chat", "run", "eval", "bench", "serve", "daemon"};
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strcmp(word[i], c->command) == 0)
            return true;
    return false;
}

/* An error if the plan of a file with the model's headers does not fit, without its drafters. What
 * else is wrong with it is for those who load it to say. */
static ingle_status check_plan(const struct cli *c, const char *name, const char *path,
                               struct err *err)
{
    const struct ingle_callbacks silent = {0};
    struct ingle_engine_options o = {.callbacks = silent};
    struct ingle_error error;
    struct ingle_plan p;
    struct ingle_model *m;
    ingle_config_engine(c->config, &o);
    o.draft = NULL;
    o.n_draft = 0;
    o.prompt_drafter = NULL;
    if (ingle_model_open(&m, path, &silent, &error))
        return INGLE_OK;
    const bool small = ingle_engine_plan(m, &o, &p, &error) != INGLE_OK || p.fits;
    ingle_model_close(m);
    if (small)
        return INGLE_OK;
    return err_set(err, INGLE_LIMIT,
                   "'%.120s' is not fetched: it needs %s and there are %s%s%.180s; --force fetches "
                   "it all the same",
                   name, SIZE_OF(p.total_bytes), SIZE_OF(p.limit_bytes),
                   *p.advice ? "; " : "", p.advice);
}

/* The same for a model that is not here yet: its headers are fetched for that. */
static ingle_status check_room(struct cli *c, const struct ingle_callbacks *callbacks,
                               const char *name, struct err *err)
{
    struct access a;
    struct hub_options o;
    struct sigaction before[N_CAUGHT];
    char *path = NULL, *folder = NULL;
    if (!loads(c) || ingle_config_flag(c->config, "force") ||
        ingle_config_flag(c->config, "update"))
        return INGLE_OK;
    ingle_status st = read_options(c, callbacks, &a, &o, err);
    n_signals = 0;
    catch_signals(before);
    if (!st && !o.offline && hub_find(name, &o, &path, NULL) == INGLE_NOTFOUND) {
        st = hub_head(name, &o, &path, &folder, err);
        if (!st)
            st = check_plan(c, name, path, err);
        else if (st != INGLE_CANCEL)
            st = INGLE_OK; /* the fetch says what is wrong */
    }
    let_signals(before);
    if (folder)
        hub_head_drop(folder);
    mem_free(folder);
    mem_free(path);
    release(&a);
    return st;
}

/* The i-th value of an option, if it is of a hub, becomes a path. */
static ingle_status resolve(struct cli *c, const struct ingle_callbacks *callbacks,
                            const char *option, size_t i, struct err *err)
{
    struct ingle_error error;
    char *path = NULL;
    const char *value = ingle_config_text(c->config, option, i);
    if (!cli_hub_names(value))
        return INGLE_OK;
    /* a router's model will run */
    const bool whole =
        ingle_config_flag(c->config, "update") || ingle_config_flag(c->config, "trust-user");
    const bool plan =
        ingle_config_flag(c->config, "plan") && strcmp(option, "model") == 0 && !whole;
    ingle_status st = !plan && strcmp(option, "model") == 0
                          ? check_room(c, callbacks, value, err)
                          : INGLE_OK;
    if (!st)
        st = plan ? plan_path(c, callbacks, value, &path, err)
                  : pull(c, callbacks, value, strcmp(option, "draft") == 0, false, &path, err);
    if (!st)
        hold(path);
    if (!st && ingle_config_replace(c->config, option, i, path, &error))
        st = err_set(err, error.status, "%s", error.text);
    mem_free(path);
    return st;
}

bool cli_hub_names(const char *value)
{
    return value &&
           (strncmp(value, "hf:", 3) == 0 || (hub_is_address(value) && access(value, F_OK) != 0));
}

bool cli_names_model(const struct cli *c, const char *value)
{
    char config[4096];
    const size_t n = strlen(value);
    if (ingle_config_is_set(c->config, "model") || strpbrk(value, " \t\r\n") ||
        snprintf(config, sizeof config, "%s/config.json", value) >= (int)sizeof config)
        return false;
    return cli_hub_names(value) || (n > 5 && strcasecmp(value + n - 5, ".gguf") == 0) ||
           access(config, F_OK) == 0;
}

bool cli_hub_any(const struct cli *c)
{
    bool any = cli_hub_names(ingle_config_text(c->config, "model", 0)) ||
               cli_hub_names(ingle_config_text(c->config, "prompt-drafter", 0));
    for (size_t i = 0; ingle_config_text(c->config, "draft", i); i++)
        any |= cli_hub_names(ingle_config_text(c->config, "draft", i));
    return any;
}

ingle_status cli_hub_model(struct cli *c, const struct ingle_callbacks *callbacks, struct err *err)
{
    ingle_status st = resolve(c, callbacks, "model", 0, err);
    if (!st)
        st = resolve(c, callbacks, "prompt-drafter", 0, err);
    for (size_t i = 0; !st && ingle_config_text(c->config, "draft", i); i++)
        st = resolve(c, callbacks, "draft", i, err);
    return st;
}

/* ---- the command ---- */

static void write_file(struct str *out, const struct hub_file *f)
{
    write_open(out, '{');
    write_member(out, "path", f->path);
    write_member_uint(out, "bytes", f->n_bytes);
    if (f->sha256[0])
        write_member(out, "sha256", f->sha256);
    write_close(out, '}');
}

static int list(struct cli *c, const char *name)
{
    struct access a;
    struct hub_options o;
    struct hub_list files = {0};
    struct err err;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    ingle_status st = read_options(c, &callbacks, &a, &o, &err);
    if (!st && o.offline)
        st = err_set(&err, INGLE_ARG, "--list asks the hub, and %s fetches nothing", o.offline_by);
    if (!st)
        st = hub_list(name, &o, &files, &err);
    const bool json = ingle_config_flag(c->config, "json");
    struct str out;
    cli_json(&out);
    if (json && !st) {
        write_open(&out, '{');
        write_key(&out, "files");
        write_open(&out, '[');
    }
    for (size_t i = 0; i < files.n && !st; i++)
        if (json)
            write_file(&out, &files.at[i]);
        else
            printf("%12.2f MB  %s\n", (double)files.at[i].n_bytes / 1e6,
                   CLI_SHOWN(files.at[i].path));
    if (json && !st) {
        write_close(&out, ']');
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    }
    hub_list_release(&files);
    release(&a);
    return st ? cli_fail_err(c, &err) : CLI_OK;
}

struct having {
    struct str out; /* JSON */
    const char *hub;
    bool json;
    size_t n;
    uint64_t n_bytes;
};

static const char *const have_kind[] = {"model", "checkpoint", "drafter", "other", "unfinished"};

static void write_have(struct str *out, const struct hub_have *h)
{
    write_open(out, '{');
    write_member(out, "name", h->name);
    write_member(out, "kind", have_kind[h->kind]);
    write_member_uint(out, "bytes", h->n_bytes);
    write_member(out, "revision", h->revision);
    if (h->hub)
        write_member(out, "hub", h->hub);
    write_member(out, "folder", h->folder);
    write_close(out, '}');
}

static void print_have(void *arg, const struct hub_have *h)
{
    struct having *s = arg;
    char size[32];
    s->n_bytes += h->n_bytes;
    s->n++;
    if (s->json) {
        write_have(&s->out, h);
        return;
    }
    hub_bytes(size, h->n_bytes);
    printf("%10s  %-10s  %s", size, have_kind[h->kind], h->name);
    if (strcmp(h->revision, "main") != 0)
        printf("  revision %s", h->revision);
    if (h->hub && strcmp(h->hub, s->hub) != 0)
        printf("  from %s", h->hub);
    putchar('\n');
}

static int have(struct cli *c)
{
    struct access a;
    struct hub_options o;
    struct err err;
    char all[32];
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    struct having s = {.json = ingle_config_flag(c->config, "json")};
    ingle_status st = read_options(c, &callbacks, &a, &o, &err);
    s.hub = o.address;
    cli_json(&s.out);
    if (!st && s.json) {
        write_open(&s.out, '{');
        write_member(&s.out, "folder", o.directory);
        write_key(&s.out, "models");
        write_open(&s.out, '[');
    }
    if (!st)
        st = hub_each(&o, print_have, &s, &err);
    hub_bytes(all, s.n_bytes);
    if (!st && s.json) {
        write_close(&s.out, ']');
        write_member_uint(&s.out, "bytes", s.n_bytes);
        write_close(&s.out, '}');
        cli_json_print(&s.out, "\n");
    } else if (!st && c->screen.progress) {
        printf("%10s  in %s: %zu\n", all, o.directory, s.n);
    }
    str_release(&s.out);
    release(&a);
    return st ? cli_fail_err(c, &err) : CLI_OK;
}

/* At a terminal a person decides; a script has said what it wants. */
static bool may_delete(void *arg, const char *folder, size_t n_files, uint64_t n_bytes)
{
    char size[32], answer[16];
    (void)arg;
    hub_bytes(size, n_bytes);
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return true;
    fprintf(stderr, "delete %zu %s, %s, of %s? [y/N] ", n_files, n_files == 1 ? "file" : "files",
            size, folder);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int delete(struct cli *c, const char *name)
{
    struct access a;
    struct hub_options o;
    struct err err;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    ingle_status st = read_options(c, &callbacks, &a, &o, &err);
    if (!st)
        st = hub_delete(name, &o, may_delete, c, &err);
    release(&a);
    if (st == INGLE_CANCEL)
        fprintf(stderr, "ingle: note: %s\n", err.msg);
    return st == INGLE_CANCEL ? CLI_FAILURE : st ? cli_fail_err(c, &err) : CLI_OK;
}

int cli_pull(struct cli *c)
{
    struct err err;
    char *path;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    if (ingle_config_flag(c->config, "have"))
        return c->n_arg ? cli_usage(c, "--have lists all of the folder and takes no name")
                        : have(c);
    if (c->n_arg != 1)
        return cli_usage(c, "one name is needed: OWNER/NAME or OWNER/NAME:CODE");
    const bool json = ingle_config_flag(c->config, "json");
    if (json && ingle_config_flag(c->config, "delete"))
        return cli_usage(c, "--delete has no --json");
    if (ingle_config_flag(c->config, "list"))
        return list(c, c->arg[0]);
    if (ingle_config_flag(c->config, "delete"))
        return delete(c, c->arg[0]);
    if (pull(c, &callbacks, c->arg[0], false, true, &path, &err))
        return cli_fail_err(c, &err);
    if (json) {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_member(&out, "path", path);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    } else {
        printf("%s\n", path);
    }
    mem_free(path);
    return CLI_OK;
}
