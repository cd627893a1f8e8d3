/* SPDX-License-Identifier: Apache-2.0 */
/* The words that kernels are written in, on the emulator, against plain C. */
#define _DEFAULT_SOURCE
#include "unit/unit.h"

#include "device/gpu/image.h"
#include "device/gpu/library.h"
#include "device/gpu/kernels/kernels.h"
#include "gpu/emu.h"
#include "quant/quant.h"
#include <elf.h>
#include <math.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint32_t state32 = 1;
static uint32_t draw(void)
{
    state32 ^= state32 << 13;
    state32 ^= state32 >> 17;
    return state32 ^= state32 << 5;
}

static uint32_t word_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return f != f ? 0x7fc00000u : u; /* a NaN is one value */
}

static int dot4(uint32_t a, uint32_t b, uint32_t c, bool u)
{
    int64_t sum = (int32_t)c;
    for (int i = 0; i < 4; i++) {
        const int x = (int)(a >> 8 * i & 255), y = (int)(b >> 8 * i & 255);
        sum += (int64_t)(u || x < 128 ? x : x - 256) * (y < 128 ? y : y - 256);
    }
    return (int32_t)sum;
}

static alignas(16) uint32_t a[64], b[64], c[64], out[WORDS_OUT][64];
static float x[64], y[64], z[64];

static void fill(void)
{
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-45f, 3.4e38f,
                                0.5f, 1.5f, -2.5f, 65520.0f, 6e-8f, 1e-30f};
    for (int i = 0; i < 64; i++) {
        a[i] = draw(), b[i] = draw(), c[i] = draw() >> 8;
        x[i] = i < 14 ? odd[i] : ldexpf((float)(int32_t)draw(), -(int)(draw() % 40));
        y[i] = i % 5 == 3 ? odd[i % 14] : ldexpf((float)(int32_t)draw(), -(int)(draw() % 60));
        z[i] = i % 7 ? -x[i] * y[i] : odd[i % 14];
    }
}

static uint32_t wanted(int word, int t)
{
    const uint32_t h = (uint32_t)t / 32 * 32;
    uint32_t n = 0;
    switch (word) {
    case 0: return a[63 - t];
    case 1: return b[t / 4 * 4] + (uint32_t)(t % 4) * b[(15 - t / 4) * 4 + 3];
    case 2: return a[h + (b[t] & 31)];
    case 3: return a[t ^ 5];
    case 4:
        for (uint32_t i = 0; i < 32; i++)
            n |= (a[h + i] & 1) << i;
        return n;
    case 5: return (uint32_t)dot4(a[t], b[t], c[t], false);
    case 6: return (uint32_t)dot4(a[t], b[t], c[t], true);
    case 7:
        for (int i = 0; i < 4; i++) {
            const uint32_t k = c[t] >> 4 * i & 15, from = k & 4 ? b[t] : a[t];
            const uint32_t byte = from >> 8 * (k & 3) & 255;
            n |= (k < 8 ? byte : byte >> 7 ? 255 : 0) << 8 * i;
        }
        return n;
    case 8:
        for (int i = 0; i < 32; i++)
            n += a[t] >> i & 1;
        return n;
    case 9:
        for (uint32_t v = a[t] >> (b[t] & 31); v; v >>= 1)
            n++;
        return 32 - n;
    case 10: return word_of(fmaf(x[t], y[t], z[t]));
    case 11: return word_of(x[t] * y[t] + z[t]);
    case 12: return word_of(x[t] / y[t]);
    case 13: return word_of(sqrtf(fabsf(x[t])));
    case 14: return word_of(rintf(x[t]));
    case 15: return word_of(quant_f16_to_f32((uint16_t)a[t]));
    case 16: return quant_f32_to_f16(x[t]);
    case 17: return word_of((float)(int32_t)a[t]);
    case 18: return word_of((float)((int)(a[t] & 0x3fffff) - (1 << 21)));
    case 19: return a[t / 4 * 4 + 2] ^ b[t / 4 * 4 + 1];
    case 20: return c[t] + (a[t / 2] >> t % 2 * 16 & 0xffff);
    case 21: return a[t / 4] >> t % 4 * 8 & 255;
    case 22:
        for (int i = t % 4; i < 64; i += 4)
            n += a[i] & 255;
        return n;
    default: return word_of(x[t ^ 3] > y[t] ? x[t] : y[t]);
    }
}

static void test_words(void **state)
{
    (void)state;
    const struct emu_kernel *k = emu_find("words_check");
    assert_non_null(k);
    for (int round = 0; round < 4; round++) {
        fill();
        for (int order = 0; order < EMU_ORDERS; order++) {
            struct words_check_args w = {a, b, c, x, y, z, out[0]};
            memset(out, 1, sizeof out);
            emu_launch(k, gpu_grid_of(1, 1, 1), &w, sizeof w, (enum emu_order)order);
            for (int word = 0; word < WORDS_OUT; word++)
                for (int t = 0; t < 64; t++) {
                    float f;
                    memcpy(&f, &out[word][t], sizeof f);
                    const bool is_float = (word >= 10 && word <= 15) || word == 23;
                    const uint32_t got = is_float ? word_of(f) : out[word][t];
                    if (got != wanted(word, t))
                        fail_msg("word %d, thread %d: %08x, %08x is right", word, t, got,
                                 wanted(word, t));
                }
        }
    }
}

static void test_matrix(void **state)
{
    (void)state;
    const struct emu_kernel *k = emu_find("words_matrix_check");
    static alignas(16) uint32_t m[32][4], n[32][4], r[WORDS_MATRIX_OUT][32];
    assert_non_null(k);
    for (int i = 0; i < 128; i++)
        m[i / 4][i % 4] = draw(), n[i / 4][i % 4] = draw();
    for (int order = 0; order < EMU_ORDERS; order++) {
        struct words_matrix_check_args w = {m[0], n[0], r[0]};
        emu_launch(k, gpu_grid_of(1, 1, 1), &w, sizeof w, (enum emu_order)order);
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) {
                assert_int_equal(r[i][l], m[i * 8 + l / 4][l % 4]);
                assert_int_equal(r[4 + i][l], n[i * 8 + l / 4][l % 4]);
                const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
                uint32_t sum = (uint32_t)i + 1, sum2 = (uint32_t)i + 5;
                uint32_t sum_u = i == 3 ? (uint32_t)l : 0;
                for (int q = 0; q < 8; q++) {
                    const uint32_t from = m[row % 8 + row / 8 * 8 + q / 4 * 16][q % 4];
                    sum = (uint32_t)dot4(from, n[column + q / 4 * 8][q % 4], sum, false);
                    sum2 = (uint32_t)dot4(from, n[16 + column + q / 4 * 8][q % 4], sum2, false);
                    sum_u = (uint32_t)dot4(from, n[column + q / 4 * 8][q % 4], sum_u, true);
                }
                assert_int_equal(r[8 + i][l], sum);
                assert_int_equal(r[12 + i][l], sum2);
                assert_int_equal(r[16 + i][l], sum_u);
            }
    }
}

/* What ends the program: other arguments, an address that is not aligned, no such block. */
static void test_errors(void **state)
{
    (void)state;
    const struct emu_kernel *k = emu_find("words_check");
    for (int i = 0; i < 4; i++) {
        fflush(NULL);
        const pid_t child = fork();
        if (!child) {
            if (!freopen("/dev/null", "w", stderr))
                _exit(1);
            signal(SIGABRT, SIG_DFL);
            struct words_check_args w = {a, i == 1 ? b + 1 : b, c, x, y, z, out[0]};
            emu_launch_with(k, gpu_grid_of(1, i == 2 ? 70000 : 1, 1), 64, i == 3 ? 256 : 1024, &w,
                            i ? sizeof w : 8, EMU_UP);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

/* Code that the build has made is found by the card's capability; a build without any is right. */
static void test_image(void **state)
{
    (void)state;
    struct gpu_image image;
    assert_false(device_gpu_image("words", 70, false, &image));
    assert_false(device_gpu_image("no_such_module", 90, false, &image));
    if (!device_gpu_codes->module)
        skip();
    for (int capability = 75; capability <= 120; capability += 15) {
        char target[32];
        assert_true(device_gpu_image("words", capability, true, &image));
        const char *text = image.at;
        assert_int_equal(text[image.n_bytes - 1], 0);
        (void)snprintf(target, sizeof target, ".target sm_%d", capability < 80 ? 75 : 80);
        assert_non_null(strstr(text, target));
        assert_non_null(strstr(text, ".version 7.5"));
        device_gpu_image_free(&image);
        assert_int_equal(device_gpu_image("words_matrix", capability, true, &image),
                         capability >= 80);
        if (capability >= 80)
            device_gpu_image_free(&image);
    }
}

/* Machine code is for cards of its major number, from its minor one on; text for all. */
static void test_machine_code(void **state)
{
    (void)state;
    static const uint8_t some[8];
    const struct device_gpu_code table[] = {
        {"a", 75, false, some, some + 8}, {"a", 80, false, some, some + 1},
        {"a", 80, true, some, some + 8},  {"a", 86, true, some, some + 8},
        {"b", 80, false, some, some + 8}, {"b", 89, true, some, some + 8},
        {"b", 75, true, some, some + 1},  {NULL, 0, false, NULL, NULL}};
    static const struct { const char *module; int capability, text, machine; } want[] = {
        {"a", 75, 0, -1}, {"a", 80, 0, 2}, {"a", 86, 0, 3},  {"a", 89, 0, 3},
        {"a", 90, 0, -1}, {"b", 80, 4, -1}, {"b", 89, 4, 5}, {"b", 120, 4, -1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const int machine = want[i].machine < 0 ? want[i].text : want[i].machine;
        assert_ptr_equal(
            device_gpu_code_of(table, want[i].module, want[i].capability, true),
            &table[want[i].text]);
        assert_ptr_equal(
            device_gpu_code_of(table, want[i].module, want[i].capability, false),
            &table[machine]);
    }
    assert_null(device_gpu_code_of(table, "b", 75, false));
}

/* The message about a file with this header and these segments; "": it is whole. */
static const char *whole(struct err *e, const Elf64_Ehdr *head, const Elf64_Phdr *part, int n_parts,
                         int64_t size)
{
    char path[] = "/tmp/library-XXXXXX";
    const int fd = mkstemp(path);
    const size_t n = (size_t)n_parts * sizeof *part;
    assert_true(fd >= 0 && write(fd, head, sizeof *head) == (ssize_t)sizeof *head);
    assert_true(write(fd, part, n) == (ssize_t)n && ftruncate(fd, size) == 0);
    close(fd);
    const ingle_status s = device_gpu_library_whole(path, e);
    unlink(path);
    return s ? e->msg : "";
}

/* A library whose end is missing is named; numbers that cannot be are not followed. */
static void test_library(void **state)
{
    (void)state;
    struct err e;
    Elf64_Ehdr head = {.e_phoff = sizeof head, .e_phnum = 2, .e_phentsize = sizeof(Elf64_Phdr)};
    Elf64_Phdr part[2] = {{.p_offset = 0, .p_filesz = 4096}, {.p_offset = 4096, .p_filesz = 904}};
    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_CLASS] = ELFCLASS64;
    assert_string_equal(whole(&e, &head, part, 2, 5000), "");
    assert_non_null(strstr(whole(&e, &head, part, 2, 4999), "needs 5000 bytes but has 4999"));
    assert_non_null(strstr(whole(&e, &head, part, 2, 120), "needs 4096 bytes but has 120"));
    part[1].p_filesz = UINT64_MAX - 10;
    assert_non_null(strstr(whole(&e, &head, part, 2, 5000), "damaged"));
    part[1].p_offset = UINT64_MAX;
    assert_non_null(strstr(whole(&e, &head, part, 2, 5000), "damaged"));
    head.e_phoff = UINT64_MAX - 20;
    assert_non_null(strstr(whole(&e, &head, part, 2, 5000), "damaged"));
    head.e_phnum = 65535; /* the loader refuses it, and what is no library */
    assert_string_equal(whole(&e, &head, part, 2, 5000), "");
    head.e_ident[0] = 0;
    assert_string_equal(whole(&e, &head, part, 2, 5000), "");
    assert_int_equal(device_gpu_library_whole("/nonexistent", &e), INGLE_OK);
    assert_int_equal(device_gpu_library_check(NULL, "libcuda.so.1", &e), INGLE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_image),
        cmocka_unit_test(test_machine_code),
        cmocka_unit_test(test_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
