/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint as the GGUF file that it becomes: names, keys, vocabulary, rows; or an error says
 * why not.
 *
 * Input: texts with a 0 between them: config.json, tokenizer.json, tokenizer_config.json, the names
 * of tensors with dtype and sizes ("name F32 4 8", one a line).  The tensors' bytes are zeros.
 */
#define _DEFAULT_SOURCE
#include "base/mem.h"
#include "base/str.h"
#include "tool/source.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST = 1 << 16, FILES = 4 };
static const char *const files[FILES] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                         "model.safetensors"};
static char dir[] = "/dev/shm/ingle-fuzz-XXXXXX";

static void path_of(int i, char out[80])
{
    snprintf(out, 80, "%s/%s", dir, files[i]);
}

static void drop_dir(void)
{
    char path[80];
    for (int i = 0; i < FILES; i++) {
        path_of(i, path);
        unlink(path);
    }
    rmdir(dir);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    if (!mkdtemp(dir))
        abort();
    atexit(drop_dir);
    return 0;
}

static void put_file(int i, const char *bytes, size_t n)
{
    char path[80];
    path_of(i, path);
    const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
        abort();
    close(fd);
}

static size_t width(const char *dtype)
{
    return strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : strstr(dtype, "16") ? 2 : 1;
}

/* A safetensors file with these tensors. */
static void put_tensors(char *list)
{
    struct str head, all;
    size_t end = 0;
    char *save = NULL;
    str_init(&head);
    str_init(&all);
    str_adds(&head, "{");
    for (char *line = strtok_r(list, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *part = NULL, *name = strtok_r(line, " ", &part), *dtype = strtok_r(NULL, " ", &part),
             *size;
        if (!name || !dtype)
            continue;
        size_t n = width(dtype), axes = 0;
        str_adds(&head, head.n > 1 ? "," : "");
        str_add_json(&head, name, strlen(name));
        str_adds(&head, ":{\"dtype\":");
        str_add_json(&head, dtype, strlen(dtype));
        str_adds(&head, ",\"shape\":[");
        while ((size = strtok_r(NULL, " ", &part))) {
            const unsigned long ne = strtoul(size, NULL, 10) % (MOST + 1);
            n = n * ne > MOST ? 0 : n * ne;
            str_addf(&head, "%s%lu", axes++ ? "," : "", ne);
        }
        str_addf(&head, "],\"data_offsets\":[%zu,%zu]}", end, end + n);
        end += n;
        if (end > 64 * MOST)
            break;
    }
    str_adds(&head, "}");
    const uint64_t n_head = head.n;
    str_add(&all, (const char *)&n_head, sizeof n_head);
    str_add(&all, head.at, head.n);
    for (size_t i = 0; i < end; i++)
        str_addc(&all, 0);
    put_file(3, all.at, all.n);
    str_release(&head);
    str_release(&all);
}

static void read_all(struct tool_source *s, struct err *err)
{
    struct io_gguf *w;
    ingle_status st = io_gguf_create(&w, "/dev/shm/never", err);
    if (st)
        return;
    st = tool_source_head(s, w, err);
    for (size_t i = 0; i < tool_source_n(s) && !st; i++) {
        const struct io_tensor *t = tool_source_at(s, i);
        void *work = mem_alloc(tool_source_work(s, i, 1) + 1),
             *to = mem_alloc((size_t)t->n_bytes + 1);
        for (uint64_t r = 0; r < t->ne[1] * t->ne[2] && work && to && !st; r++)
            st = tool_source_rows(s, i, r, 1, work, to, err);
        mem_free(work);
        mem_free(to);
    }
    io_gguf_drop(w);
    if (st && !err->msg[0])
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *all = mem_alloc(n + 1);
    struct tool_source *s;
    struct err err = {0};
    if (!all)
        abort();
    memcpy(all, data, n);
    all[n] = 0;
    char *at = all, *end = all + n;
    for (int i = 0; i < FILES; i++) {
        const size_t k = at < end ? strlen(at) : 0;
        if (i < 3)
            put_file(i, at < end ? at : "", k);
        else
            put_tensors(at < end ? at : strcpy(all, ""));
        at += at < end ? k + 1 : 0;
    }
    const struct tool_source_options o = {.part = n ? (enum tool_source_part)(data[n - 1] % 3)
                                                    : TOOL_SOURCE_MAIN};
    if (!tool_source_open(&s, dir, &o, NULL, &err)) {
        read_all(s, &err);
        tool_source_close(s);
    } else if (!err.msg[0]) {
        abort();
    }
    mem_free(all);
    return 0;
}
