/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iq_books - expands src/quant/iq_books.txt into constant tables, at build time.
 *
 * usage: iq_books IN OUT [CARD]     CARD: the same points for kernels of a card
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct book {
    char name[16], parity[8];
    int n, dim, n_levels, level[8];
    unsigned char bitmap[1024];
    size_t n_bits;
};

static void die(const char *what, const char *which)
{
    fprintf(stderr, "iq_books: %s: %s\n", what, which);
    exit(1);
}

static void add_base64(struct book *b, const char *line)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (; *line && *line != '\n' && *line != '='; line++) {
        const char *hit = strchr(digits, *line);
        if (!hit || b->n_bits + 6 > 8 * sizeof b->bitmap)
            die("bad base64", line);
        /* Most significant bit of a digit first, into the top of the next free byte. */
        for (int i = 5; i >= 0; i--, b->n_bits++)
            if ((hit - digits) >> i & 1)
                b->bitmap[b->n_bits / 8] |= (unsigned char)(0x80 >> b->n_bits % 8);
    }
}

static int has(const struct book *b, size_t k)
{
    if (k >= b->n_bits)
        die("bitmap too short", b->name);
    return b->bitmap[k / 8] >> k % 8 & 1;
}

/* The next point of a bitmap: level numbers of its coordinates.  Starts at idx[0] = -1. */
static int next_point(const struct book *b, int idx[8], size_t *k)
{
    for (;;) {
        int sum = 0, i = 0;
        while (i < b->dim && ++idx[i] == b->n_levels)
            idx[i++] = 0;
        if (i == b->dim)
            return 0;
        for (i = 0; i < b->dim; i++)
            sum += idx[i];
        if ((strcmp(b->parity, "all") == 0 || sum % 2 == 0) && has(b, (*k)++))
            return 1;
    }
}

/* Numbers of levels of the first and of the last half of the coordinates, in a byte each: four of
 * 2 bits or two of 3. */
static void codes(const struct book *b, FILE *out)
{
    const int bits = b->n_levels <= 4 ? 2 : 3;
    fprintf(out, "\nconst uint8_t quant_codes_%s[2][%d] = {{", b->name, b->n);
    for (int half = 0; half < 2; half++) {
        int idx[8] = {-1}, n = 0;
        size_t k = 0;
        while (next_point(b, idx, &k)) {
            int v = 0;
            for (int i = 0; i < b->dim / 2; i++)
                v |= idx[half * b->dim / 2 + i] << bits * i;
            fprintf(out, "%s%d,", n++ % 16 ? " " : "\n    ", v);
        }
        fprintf(out, half ? "\n}};\n" : "\n}, {");
    }
}

/* Which half of a point coordinate i is in: chosen so that neither has more than 64 values. */
static int half_of(int i)
{
    return 0x8E >> i & 1;
}

static void put_bytes(FILE *out, const unsigned char *v, int n, const char *end)
{
    for (int i = 0; i < n; i++)
        fprintf(out, "%s%d,", i % 16 ? " " : "\n    ", v[i]);
    fprintf(out, "\n%s", end);
}

static void halves(const struct book *b, FILE *out)
{
    static unsigned char id[2][256], value[8][64];
    int idx[8] = {-1}, n = 0, n_ids[2] = {0};
    size_t k = 0;
    memset(value, 0, sizeof value);
    for (; next_point(b, idx, &k); n++)
        for (int half = 0; half < 2; half++) {
            int j = 0, same = 0;
            for (; j < n_ids[half] && !same; j += !same) {
                same = 1;
                for (int i = 0; i < 8; i++)
                    same &= half_of(i) != half || value[i][j] == b->level[idx[i]];
            }
            if (j == 64)
                die("too many half points", b->name);
            for (int i = 0; i < 8; i++)
                if (half_of(i) == half)
                    value[i][j] = (unsigned char)b->level[idx[i]];
            n_ids[half] += j == n_ids[half];
            id[half][n] = (unsigned char)j;
        }
    fprintf(out, "\nconst uint8_t quant_halves_%s[2][256] = {{", b->name);
    put_bytes(out, id[0], 256, "}, {");
    put_bytes(out, id[1], 256, "}};\n");
    fprintf(out, "\nconst uint8_t quant_values_%s[8][64] = {", b->name);
    for (int i = 0; i < 8; i++) {
        fprintf(out, "{");
        put_bytes(out, value[i], 64, i < 7 ? "}, " : "}};\n");
    }
}

static void points(struct book *b, FILE *out)
{
    int idx[8] = {-1}, n = 0;
    size_t k = 0;
    while (next_point(b, idx, &k)) {
        fprintf(out, "%s0x", n++ % 4 ? " " : "\n    ");
        for (int i = b->dim; i--;)
            fprintf(out, "%02x", (unsigned)b->level[idx[i]] & 255);
        fprintf(out, "u,");
    }
    fprintf(out, "\n};\n");
    if (n != b->n)
        die("wrong number of points", b->name);
}

/* A table for kernels of a card: points of 8 coordinates as selectors of bytes, the number of
 * a level in each half byte, to which 4 is added for its negative; points of 4 as they are. */
static void card_points(struct book *b, FILE *card)
{
    int idx[8] = {-1};
    size_t k = 0;
    unsigned low = 0, high = 0;
    fprintf(card, "#ifdef POINTS_WANTS_%s\nenum { POINTS_N = %d };\n", b->name, b->n);
    fprintf(card, "GPU_TABLE uint32_t points_book[POINTS_N] = {");
    if (b->dim == 4) {
        points(b, card);
        fprintf(card, "#endif\n");
        return;
    }
    if (b->n_levels > 4)
        die("too many levels for selectors", b->name);
    for (int n = 0; next_point(b, idx, &k); n++) {
        unsigned v = 0;
        for (int i = 0; i < b->dim; i++)
            v |= (unsigned)idx[i] << 4 * i;
        fprintf(card, "%s0x%08xu,", n % 8 ? " " : "\n    ", v);
    }
    for (int i = 0; i < b->n_levels; i++) {
        low |= ((unsigned)b->level[i] & 255) << 8 * i;
        high |= ((unsigned)-b->level[i] & 255) << 8 * i;
    }
    fprintf(card, "\n};\n#define POINTS_LEVELS 0x%08xu\n#define POINTS_NEGATIVE 0x%08xu\n#endif\n",
            low, high);
}

static void expand(struct book *b, FILE *out, FILE *card)
{
    fprintf(out, "\nconst uint%d_t quant_book_%s[%d] = {", 8 * b->dim, b->name, b->n);
    points(b, out);
    if (card && b->n <= 1024)
        card_points(b, card);
    if (b->n <= 1024)
        codes(b, out);
    if (b->n == 256 && b->dim == 8)
        halves(b, out);
}

static void read_head(struct book *b, const char *line)
{
    int at = 0;
    *b = (struct book){0};
    if (sscanf(line, "@%15s %d %d %7s %d%n", b->name, &b->n, &b->dim, b->parity, &b->n_levels,
               &at) != 5 ||
        (b->dim != 4 && b->dim != 8) || b->n_levels < 1 || b->n_levels > 8)
        die("bad head", line);
    for (int i = 0, len; i < b->n_levels; i++, at += len)
        if (sscanf(line + at, "%d%n", &b->level[i], &len) != 1)
            die("bad levels", line);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4)
        die("usage", "iq_books IN OUT [CARD]");
    FILE *in = fopen(argv[1], "r"), *out = fopen(argv[2], "w");
    if (!in || !out)
        die("cannot open", in ? argv[2] : argv[1]);
    FILE *card = argc == 4 ? fopen(argv[3], "w") : NULL;
    if (argc == 4 && !card)
        die("cannot open", argv[3]);
    fprintf(out, "/* Made by scripts/iq_books.c. */\n#include \"quant/quant.h\"\n");
    struct book b = {0};
    for (char line[256]; fgets(line, sizeof line, in);) {
        if (*line == '@') {
            if (b.n)
                expand(&b, out, card);
            read_head(&b, line);
        } else if (*line != '#' && *line != '\n') {
            add_base64(&b, line);
        }
    }
    expand(&b, out, card);
    if (card && fclose(card))
        die("cannot write", argv[3]);
    if (ferror(in) || fclose(in) || fclose(out))
        die("cannot write", argv[2]);
    return 0;
}
