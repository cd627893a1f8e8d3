/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "server/auth.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/plain.h"
#include "base/sha256.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_KEYS = 4096, MAX_KEY = 4096, MAX_FILE = 1 << 20 };

struct key {
    const char *name; /* in auth.name */
    bool unnamed; /* by the file: called key- and the start of its hash */
    uint8_t hash[SHA256_BYTES];
};

struct list {
    char **at;
    size_t n, cap;
};

struct auth {
    pthread_mutex_t lock;
    struct key *key; /* Sync: lock, as the two below, once requests come */
    size_t n_keys, cap_keys;
    struct list name; /* of all keys there ever were: requests borrow them */
    struct list host, origin;
    bool has_priority;
    int priority; /* of keys without one of their own */
    bool trusts;
    struct ranked { /* names that have a priority */
        char *name;
        int priority;
    } *ranked;
    size_t n_ranked, cap_ranked;
    struct list user; /* with trust: names that another server sent */
};

ingle_status auth_open(struct auth **out, struct err *err)
{
    struct auth *a = mem_zalloc(sizeof *a);
    if (!a || pthread_mutex_init(&a->lock, NULL)) {
        mem_free(a);
        return err_set(err, INGLE_NOMEM, "no memory for the keys");
    }
    *out = a;
    return INGLE_OK;
}

static void release_list(struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->at[i]);
    mem_free(l->at);
}

void auth_close(struct auth *a)
{
    if (!a)
        return;
    mem_free(a->key);
    release_list(&a->name);
    for (size_t i = 0; i < a->n_ranked; i++)
        mem_free(a->ranked[i].name);
    mem_free(a->ranked);
    release_list(&a->user);
    release_list(&a->host);
    release_list(&a->origin);
    pthread_mutex_destroy(&a->lock);
    mem_free(a);
}

static ingle_status add(struct list *l, const char *text, size_t n, struct err *err)
{
    char *copy = mem_strndup(text, n);
    if (!copy || !mem_grow(&l->at, &l->cap, l->n + 1, sizeof *l->at)) {
        mem_free(copy);
        return err_set(err, INGLE_NOMEM, "no memory for '%s'", text);
    }
    l->at[l->n++] = copy;
    return INGLE_OK;
}

/* ---- keys ---- */

static void hash(const char *key, size_t n, uint8_t out[SHA256_BYTES])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, key, n);
    sha256_end(&s, out);
}

/* What a key without a name is called: prompts and files are kept under it, so it moves with the
 * key and belongs to no other one. */
enum { HASH_NAME = 8 }; /* bytes of the hash */
static size_t name_of_hash(const uint8_t h[SHA256_BYTES], char out[32])
{
    size_t n = (size_t)snprintf(out, 32, "key-");
    for (int i = 0; i < HASH_NAME; i++)
        n += (size_t)snprintf(out + n, 32 - n, "%02x", h[i]);
    return n;
}

/* The name as long as a lives; NULL: no memory. */
static const char *keep_name(struct auth *a, const char *name, size_t n)
{
    for (size_t i = 0; i < a->name.n; i++)
        if (strlen(a->name.at[i]) == n && memcmp(a->name.at[i], name, n) == 0)
            return a->name.at[i];
    return add(&a->name, name, n, NULL) ? NULL : a->name.at[a->name.n - 1];
}

static ingle_status add_key(struct auth *a, const char *where, const char *text, size_t n,
                            struct err *err)
{
    char unnamed[32];
    const char *colon = memchr(text, ':', n);
    size_t n_name = colon ? (size_t)(colon - text) : 0;
    const char *name = text, *key = colon ? colon + 1 : text;
    const size_t n_key = colon ? n - n_name - 1 : n;
    if ((colon && !n_name) || n_name > 64 || !n_key || n_key > MAX_KEY)
        return err_set(err, INGLE_FORMAT, "%s is neither a key nor name:key", where);
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return err_set(err, INGLE_FORMAT, "%s: a key has a byte 0x%02x", where,
                           (unsigned char)text[i]);
    if (a->n_keys >= MAX_KEYS)
        return err_set(err, INGLE_LIMIT, "%s: more than %d keys", where, MAX_KEYS);
    struct key k = {.unnamed = !colon};
    hash(key, n_key, k.hash);
    if (!colon) {
        name = unnamed;
        n_name = name_of_hash(k.hash, unnamed);
    }
    for (size_t i = 0; i < a->n_keys; i++) {
        const struct key *other = &a->key[i];
        if (memcmp(other->hash, k.hash, sizeof k.hash) == 0)
            return err_set(err, INGLE_FORMAT, "%s: the same key as '%s'", where, other->name);
        if (other->unnamed != k.unnamed && strlen(other->name) == n_name &&
            memcmp(other->name, name, n_name) == 0)
            return err_set(err, INGLE_FORMAT,
                           "%s: the name '%s' is reserved for keys without a name", where,
                           other->name);
    }
    k.name = keep_name(a, name, n_name);
    if (!k.name || !mem_grow(&a->key, &a->cap_keys, a->n_keys + 1, sizeof *a->key))
        return err_set(err, INGLE_NOMEM, "no memory for the keys of %s", where);
    a->key[a->n_keys++] = k;
    return INGLE_OK;
}

ingle_status auth_take_keys(struct auth *a, struct auth *from, struct err *err)
{
    struct key *key = from->key;
    for (size_t i = 0; i < from->n_keys; i++) {
        key[i].name = keep_name(a, key[i].name, strlen(key[i].name));
        if (!key[i].name)
            return err_set(err, INGLE_NOMEM, "no memory for the names of keys");
    }
    pthread_mutex_lock(&a->lock);
    from->key = a->key;
    a->key = key;
    const size_t n = a->n_keys, cap = a->cap_keys;
    a->n_keys = from->n_keys;
    a->cap_keys = from->cap_keys;
    pthread_mutex_unlock(&a->lock);
    from->n_keys = n;
    from->cap_keys = cap;
    return INGLE_OK;
}

ingle_status auth_add_key(struct auth *a, const char *text, struct err *err)
{
    return add_key(a, "--api-key", text, strlen(text), err);
}

static ingle_status add_line(struct auth *a, const char *path, int line, const char *text, size_t n,
                             struct err *err)
{
    char where[300];
    snprintf(where, sizeof where, "'%s' line %d", path, line);
    return add_key(a, where, text, n, err);
}

ingle_status auth_add_keys(struct auth *a, const char *path, struct err *err)
{
    struct stat is;
    char *text;
    size_t n;
    if (stat(path, &is) == 0 && S_ISREG(is.st_mode) && !file_is_private(&is))
        return err_set(err, INGLE_ARG, "key file '%s' is open to others (mode %03o): chmod 600",
                       path, (unsigned)is.st_mode & 0777);
    ingle_status st = file_slurp(path, MAX_FILE, &text, &n, err);
    if (st)
        return st;
    st = plain_text(path, &text, &n, err);
    const size_t before = a->n_keys;
    int line = 0;
    for (size_t i = 0; i < n && !st;) {
        const char *end = memchr(text + i, '\n', n - i);
        size_t from = i, to = end ? (size_t)(end - text) : n;
        i = to + 1;
        line++;
        while (from < to && strchr(" \t\r", text[from]))
            from++;
        while (from < to && strchr(" \t\r", text[to - 1]))
            to--;
        if (from < to && text[from] != '#')
            st = add_line(a, path, line, text + from, to - from, err);
    }
    memset(text, 0, n);
    mem_free(text);
    if (!st && a->n_keys == before)
        return err_set(err, INGLE_FORMAT, "key file '%s' has no key", path);
    return st;
}

size_t auth_n_keys(struct auth *a)
{
    pthread_mutex_lock(&a->lock);
    const size_t n = a->n_keys;
    pthread_mutex_unlock(&a->lock);
    return n;
}

/* All keys are looked at, whichever fits. */
static const char *find_key(struct auth *a, const char *key)
{
    uint8_t h[SHA256_BYTES];
    const size_t n = strlen(key);
    const char *name = NULL;
    if (n > MAX_KEY)
        return NULL;
    hash(key, n, h);
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->n_keys; i++) {
        unsigned differ = 0;
        for (int j = 0; j < SHA256_BYTES; j++)
            differ |= (unsigned)(h[j] ^ a->key[i].hash[j]);
        if (!differ)
            name = a->key[i].name;
    }
    pthread_mutex_unlock(&a->lock);
    return name;
}

const char *auth_key(struct auth *a, const char *authorization, const char *x_api_key)
{
    const char *name = NULL;
    if (authorization && strncasecmp(authorization, "bearer ", 7) == 0) {
        authorization += 7;
        name = find_key(a, authorization + strspn(authorization, " "));
    }
    if (!name && x_api_key)
        name = find_key(a, x_api_key);
    return name;
}

/* ---- priorities ---- */

enum { MAX_PRIORITY = 10 };

ingle_status auth_add_priority(struct auth *a, const char *text, struct err *err)
{
    const char *equals = strrchr(text, '='), *number = equals ? equals + 1 : text;
    const size_t n = equals ? (size_t)(equals - text) : 0;
    char *end;
    const long value = strtol(number, &end, 10);
    if (end == number || *end || value < -MAX_PRIORITY || value > MAX_PRIORITY)
        return err_set(err, INGLE_ARG, "'--max-priority %s': N or NAME=N, N from -%d to %d", text,
                       MAX_PRIORITY, MAX_PRIORITY);
    bool found = a->trusts;
    for (size_t i = 0; equals && i < a->n_keys; i++)
        found |= strlen(a->key[i].name) == n && memcmp(a->key[i].name, text, n) == 0;
    if (equals && !found)
        return err_set(err, INGLE_ARG, "'--max-priority %s': no key is called '%.*s'", text, (int)n,
                       text);
    if (equals) {
        struct ranked r = {mem_strndup(text, n), (int)value};
        if (!r.name || !mem_grow(&a->ranked, &a->cap_ranked, a->n_ranked + 1, sizeof *a->ranked)) {
            mem_free(r.name);
            return err_set(err, INGLE_NOMEM, "no memory for '--max-priority %s'", text);
        }
        a->ranked[a->n_ranked++] = r;
    }
    if (!equals) {
        a->has_priority = true;
        a->priority = (int)value;
    }
    return INGLE_OK;
}

int auth_priority(struct auth *a, const char *key)
{
    for (size_t i = a->n_ranked; i-- > 0;)
        if (strcmp(a->ranked[i].name, key) == 0)
            return a->ranked[i].priority;
    return a->has_priority ? a->priority : auth_n_keys(a) > 1 ? 0 : MAX_PRIORITY;
}

/* ---- names that another server sends ---- */

void auth_trust(struct auth *a) { a->trusts = true; }

bool auth_trusts(const struct auth *a) { return a->trusts; }

const char *auth_user(struct auth *a, const char *name)
{
    const size_t n = strlen(name);
    if (n > 64 || a->user.n > MAX_KEYS)
        return NULL;
    for (size_t i = 0; i < a->user.n; i++)
        if (strcmp(a->user.at[i], name) == 0)
            return a->user.at[i];
    return add(&a->user, name, n, NULL) ? NULL : a->user.at[a->user.n - 1];
}

/* ---- names ---- */

ingle_status auth_add_host(struct auth *a, const char *name, struct err *err)
{
    if (strpbrk(name, ":/, \t") && !strchr(name, '['))
        return err_set(err, INGLE_ARG,
                       "'--allowed-host %s': only a name, without scheme, port and path", name);
    if (name[0] == '.' && (!name[1] || strstr(name, "..")))
        return err_set(err, INGLE_ARG, "'--allowed-host %s': a suffix such as .svc.cluster.local",
                       name);
    return add(&a->host, name, strlen(name), err);
}

static bool is_address(const char *s, size_t n)
{
    char text[64];
    unsigned char address[sizeof(struct in6_addr)];
    if (n >= sizeof text)
        return false;
    if (n > 2 && s[0] == '[' && s[n - 1] == ']') {
        memcpy(text, s + 1, n - 2);
        text[n - 2] = 0;
        return inet_pton(AF_INET6, text, address) == 1;
    }
    memcpy(text, s, n);
    text[n] = 0;
    return inet_pton(AF_INET, text, address) == 1;
}

/* "*", the name itself, or ".suffix" of names that end so. */
static bool host_fits(const char *allowed, const char *host, size_t n)
{
    const size_t n_allowed = strlen(allowed);
    if (strcmp(allowed, "*") == 0)
        return true;
    if (allowed[0] == '.')
        return n > n_allowed && strncasecmp(allowed, host + n - n_allowed, n_allowed) == 0;
    return n_allowed == n && strncasecmp(allowed, host, n) == 0;
}

bool auth_host(const struct auth *a, const char *host)
{
    if (!host || !*host)
        return true; /* HTTP/1.0: no browser */
    const char *end = strchr(host, ']');
    const char *colon = strchr(end ? end : host, ':');
    if (colon && colon[1 + strspn(colon + 1, "0123456789")])
        return false; /* "localhost:evil.example" */
    size_t n = colon ? (size_t)(colon - host) : strlen(host);
    if (n && host[n - 1] == '.')
        n--;
    if ((n == 9 && strncasecmp(host, "localhost", 9) == 0) || is_address(host, n))
        return true;
    for (size_t i = 0; i < a->host.n; i++)
        if (host_fits(a->host.at[i], host, n))
            return true;
    return false;
}

ingle_status auth_add_origins(struct auth *a, const char *origins, struct err *err)
{
    for (const char *p = origins;;) {
        const size_t n = strcspn(p, ", ");
        const bool fine = (n == 1 && *p == '*') || (n == 9 && strncmp(p, "localhost", 9) == 0) ||
                          strncmp(p, "http://", 7) == 0 || strncmp(p, "https://", 8) == 0;
        const char *host = memchr(p, ':', n); /* "://" and what stands after it: no path */
        if (!n)
            return err_set(err, INGLE_ARG, "--cors-origins '%.200s' has an empty origin", origins);
        if (!fine || (host && (n < (size_t)(host - p) + 4 ||
                               memchr(host + 3, '/', n - (size_t)(host - p) - 3))))
            return err_set(err, INGLE_ARG,
                           "'%.*s' is not an origin: scheme and host such as https://a.example",
                           (int)n, p);
        const ingle_status st = add(&a->origin, p, n, err);
        if (st)
            return st;
        p += n;
        p += strspn(p, " ");
        if (!*p)
            return INGLE_OK;
        p += *p == ',';
        p += strspn(p, " ");
    }
}

/* "http://localhost:3000" and the like: a page of this machine. */
static bool is_local(const char *origin)
{
    static const char *const name[] = {"localhost", "127.0.0.1", "[::1]"};
    const size_t scheme = strncmp(origin, "http://", 7) == 0    ? 7
                          : strncmp(origin, "https://", 8) == 0 ? 8
                                                                : 0;
    for (size_t i = 0; scheme && i < sizeof name / sizeof *name; i++) {
        const size_t n = strlen(name[i]);
        const char *port = origin + scheme + n;
        if (strncasecmp(origin + scheme, name[i], n) == 0 &&
            (!*port || (*port == ':' && port[1] && !port[1 + strspn(port + 1, "0123456789")])))
            return true;
    }
    return false;
}

const char *auth_cors(const struct auth *a, const char *origin)
{
    for (size_t i = 0; i < a->origin.n; i++) {
        if (strcmp(a->origin.at[i], "*") == 0)
            return "*";
        if (!origin)
            continue;
        if (strcasecmp(a->origin.at[i], origin) == 0)
            return a->origin.at[i];
        if (strcmp(a->origin.at[i], "localhost") == 0 && is_local(origin))
            return origin;
    }
    return NULL;
}

bool auth_origin(const struct auth *a, const char *origin, const char *host)
{
    if (auth_cors(a, origin))
        return true;
    const char *at = strstr(origin, "://");
    return at && host && strcasecmp(at + 3, host) == 0;
}
