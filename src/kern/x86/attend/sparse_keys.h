/*
 * sparse_keys - keys of a page as q8r's codes, sixteen positions side by side.  A part of
 * sparse_body.h.
 */

enum { KEY_BLOCKS = KERN_PAGE / 16 };

/* Stages h, 2 h and 4 h of kern_row_hadamard() for eight of sixteen lanes each, h * 16 floats
 * apart. */
LANES_INLINE void turn_eight(float *x, int64_t h)
{
    const int64_t n = h * 16;
    struct v16 a[8], b[8];
    LANES_UNROLL
    for (int i = 0; i < 8; i++)
        a[i] = v_load(x + i * n);
    LANES_UNROLL
    for (int i = 0; i < 8; i += 2) {
        b[i] = v_add(a[i], a[i + 1]);
        b[i + 1] = v_sub(a[i], a[i + 1]);
    }
    LANES_UNROLL
    for (int i = 0; i < 8; i += 4) {
        a[i] = v_add(b[i], b[i + 2]);
        a[i + 1] = v_add(b[i + 1], b[i + 3]);
        a[i + 2] = v_sub(b[i], b[i + 2]);
        a[i + 3] = v_sub(b[i + 1], b[i + 3]);
    }
    LANES_UNROLL
    for (int i = 0; i < 4; i++) {
        v_store(x + i * n, v_add(a[i], a[i + 4]));
        v_store(x + (i + 4) * n, v_sub(a[i], a[i + 4]));
    }
}

/* kern_row_hadamard() of sixteen rows: f32 [width][16]. */
static void turn_rows(float *x, int64_t width)
{
    int64_t h = 1;
    for (; h * 8 <= width; h *= 8)
        for (int64_t i = 0; i < width; i += 8 * h)
            for (int64_t j = i; j < i + h; j++)
                turn_eight(x + j * 16, h);
    for (; h < width; h *= 2)
        for (int64_t i = 0; i < width; i += 2 * h)
            for (int64_t j = i; j < i + h; j++) {
                const struct v16 a = v_load(x + j * 16), b = v_load(x + (j + h) * 16);
                v_store(x + j * 16, v_add(a, b));
                v_store(x + (j + h) * 16, v_sub(a, b));
            }
    const struct v16 by = v_set((float)(1.0 / sqrt((double)width)));
    for (int64_t k = 0; k < width; k++)
        v_store(x + k * 16, v_mul(v_load(x + k * 16), by));
}

/* Of four dimensions of sixteen positions whole numbers plus 1.5 * 2^23: [16][4] bytes, with 128
 * added. */
LANES_INLINE void pack_four(const struct v16 v[4], uint8_t *to)
{
#ifdef __AVX512F__
    const __m512i low = _mm512_set1_epi32(255);
    __m512i y = _mm512_and_si512(_mm512_castps_si512(v[0].a), low);
    LANES_UNROLL
    for (int i = 1; i < 4; i++) {
        const __m512i one = _mm512_and_si512(_mm512_castps_si512(v[i].a), low);
        y = _mm512_or_si512(y, _mm512_slli_epi32(one, (unsigned)(8 * i)));
    }
    _mm512_storeu_si512(to, _mm512_xor_si512(y, _mm512_set1_epi8(-128)));
#else
    const __m256i low = _mm256_set1_epi32(255);
    LANES_UNROLL
    for (int half = 0; half < 2; half++) {
        __m256i y = _mm256_setzero_si256();
        LANES_UNROLL
        for (int i = 0; i < 4; i++) {
            const __m256i one = _mm256_and_si256(_mm256_castps_si256(half ? v[i].b : v[i].a), low);
            y = _mm256_or_si256(y, _mm256_slli_epi32(one, 8 * i));
        }
        _mm256_storeu_si256((__m256i *)(void *)(to + half * 32),
                            _mm256_xor_si256(y, _mm256_set1_epi8(-128)));
    }
#endif
}

/* kern_kv_round_q8r() of sixteen turned rows x, f32 [width][16].  Quotients are those of a
 * division: the reciprocal is rounded correctly, the remainder of the first product is exact (what
 * is so small that it is not, rounds to zero). */
static void round_rows(const float *x, int64_t width, uint8_t *code, uint16_t *scale)
{
    struct v16 top = v_zero(), odd = v_zero();
    const struct v16 sign = v_bits(0x7fffffffu);
    for (int64_t k = 0; k < width; k++) {
        const struct v16 y = v_load(x + k * 16);
        odd = v_fma(y, v_zero(), odd); /* NaN of what is not finite */
        top = v_max(v_and(y, sign), top);
    }
    float most[16], rest[16];
    v_store(most, v_div(top, v_set(127.0f)));
    v_store(rest, odd);
    for (int i = 0; i < 16; i++) {
        const uint16_t half = (uint16_t)_cvtss_sh(most[i], _MM_FROUND_TO_NEAREST_INT);
        scale[i] = rest[i] != 0.0f || half >= 0x7c00 ? 0x7e00 : half;
    }
    const struct v16 by = v_from_f16(scale), once = v_div(v_set(1.0f), by);
    const struct m16 some = v_greater(by, v_zero());
    for (int64_t k = 0; k < width; k += 4) {
        struct v16 v[4];
        LANES_UNROLL
        for (int i = 0; i < 4; i++) {
            const struct v16 y = v_load(x + (k + i) * 16), q = v_mul(y, once);
            struct v16 z = v_fma(v_fnma(q, by, y), once, q);
            z = v_max(v_set(-127.0f), v_min(v_set(127.0f), z));
            v[i] = v_add(v_choose(some, z, v_zero()), v_set(12582912.0f));
        }
        pack_four(v, code + k * 16);
    }
}

LANES_INLINE void plain_rows_on(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                int64_t b, float *x)
{
    struct v16 by = v_zero();
    for (int64_t k = 0; k < width; k++) {
        if (c == KERN_KV_Q8_0 && k % ATTEND_QUANT == 0)
            by = key_scale(block, width, b, k);
        v_store(x + k * 16, element(c, block, (b * width + k) * 16, by));
    }
}

/* Keys of sixteen positions from block b on as they are stored: f32 [width][16].  False: they are
 * kept in another way. */
static bool plain_rows(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t b,
                       float *x)
{
    if (c >= KERN_KV_FP8)
        return false;
    PLAIN_CODEC(c, plain_rows_on, block, width, b, x)
    return true;
}

/* Keys of sixteen positions from block b on, of n4r: f32 [width][16], turned as they are stored. */
static void n4r_rows(const uint8_t *block, int64_t width, int64_t b, float *x)
{
    const int64_t group = kern_kv_group(KERN_KV_N4R, width);
    const uint16_t *norm =
        (const uint16_t *)(const void *)tail_bytes(KERN_KV_N4R, block, width) + b * 16;
    const uint8_t *at = block + b * width * 8;
    for (int64_t g = 0; g < width; g += group, norm += KERN_PAGE) {
        const struct v16 by = v_from_f16(norm);
        for (int64_t k = g; k < g + group / 2; k += 4, at += 64) {
            uint8_t low[64], high[64];
            expand(at, kern_n4r_level, low, high);
            LANES_UNROLL
            for (int i = 0; i < 4; i++) {
                v_store(x + (k + i) * 16, v_mul(by, byte_of(low, i)));
                v_store(x + (k + group / 2 + i) * 16, v_mul(by, byte_of(high, i)));
            }
        }
    }
}

/* Keys with +rot of sixteen positions from block b on, as they are meant: f32 [width][16]; room:
 * the same and f32 [width]. */
static void rot_rows(const struct kern_attend *a, const uint8_t *page, int64_t b, float *x,
                     float *room)
{
    const int64_t width = a->k_width, part = width / KERN_KV_PARTS;
    float *row = room + 16 * width;
    for (int64_t j = 0; j < 16; j++) {
        for (int64_t d = 0; d < width; d += 16)
            v_store(row + d, value_at(a->v_codec, page + a->v_at, width, b * 16 + j, d));
        kern_attend_coded_read(a->k_codec, true, width, page + a->k_at, b * 16 + j, row);
        for (int64_t k = 0; k < width; k++)
            room[k * 16 + j] = row[k];
    }
    for (int64_t k = 0; k < width; k += part)
        turn_rows(room + k * 16, part);
    for (int64_t k = 0; k < width; k++) {
        const int64_t d = kern_kv_rot_dim(width, k);
        const struct v16 y = v_load(room + k * 16);
        v_store(x + d * 16, k < part ? y : v_mul(y, v_set(a->from_v->weight[d])));
    }
}

/* Angles of the pairs of keys that are made of values, of the position that a page begins with: f32
 * [n_pairs][2]. */
static void page_angles(const struct kern_from_v *f, int64_t pos, float *angle)
{
    enum { SOME = 64 };
    for (int64_t i = 0; i < f->n_pairs; i += SOME)
        kern_rope_angles(angle + 2 * i, pos, f->inv_freq + i, num_min(SOME, f->n_pairs - i));
}

LANES_INLINE void turn_pair(float *x, float *y, struct v16 c, struct v16 s)
{
    const struct v16 a = v_load(x), b = v_load(y);
    v_store(x, v_fnma(b, s, v_mul(a, c)));
    v_store(y, v_fma(a, s, v_mul(b, c)));
}

/* Keys of sixteen positions from block b on, made of values: f32 [width][16]; room: f32 [width]. */
static void made_rows(const struct kern_attend *a, const uint8_t *values, const float *angle,
                      int64_t b, float *x, float *room)
{
    const struct kern_from_v *f = a->from_v;
    const int64_t width = a->k_width;
    const float *slot = f->slot + b * 16 * f->n_pairs * 2;
    for (int64_t j = 0; j < 16; j++) {
        for (int64_t d = 0; d < width; d += 16)
            v_store(room + d, v_mul(value_at(a->v_codec, values, width, b * 16 + j, d),
                                    v_load(f->weight + d)));
        for (int64_t k = 0; k < width; k++)
            x[k * 16 + j] = room[k];
    }
    for (int64_t i = 0; i < f->n_pairs; i++) {
        float c[16], s[16];
        for (int64_t j = 0; j < 16; j++) {
            c[j] = slot[(j * f->n_pairs + i) * 2];
            s[j] = slot[(j * f->n_pairs + i) * 2 + 1];
        }
        turn_pair(x + i * 16, x + (i + f->half) * 16, v_load(c), v_load(s));
        turn_pair(x + i * 16, x + (i + f->half) * 16, v_set(angle[2 * i]), v_set(angle[2 * i + 1]));
    }
}

/* Slots [0, to) of a page, and those of their 32, to codes and scales in the form of q8r; room: f32
 * [33][width]. */
static void make_keys(const struct kern_attend *a, int64_t page, int64_t to, uint8_t *code,
                      uint16_t *scale, float *room)
{
    const int64_t width = a->k_width;
    const uint8_t *at = a->page[page];
    float angle[KERN_KV_WIDE];
    if (a->k_codec == KERN_KV_FROM_V)
        page_angles(a->from_v, page * KERN_PAGE, angle);
    for (int64_t b = 0; b < num_div_up(to, KERN_ATTEND_BLOCK) * 2; b++) {
        if (plain_rows(a->k_codec, at + a->k_at, width, b, room)) {
            turn_rows(room, width);
        } else if (a->k_codec == KERN_KV_N4R) {
            n4r_rows(at + a->k_at, width, b, room);
        } else if (kern_kv_is_rot(a->k_codec)) {
            rot_rows(a, at, b, room, room + 16 * width);
            turn_rows(room, width);
        } else if (a->k_codec == KERN_KV_FROM_V) {
            made_rows(a, at + a->v_at, angle, b, room, room + 16 * width);
            turn_rows(room, width);
        } else {
            float *key = room + 16 * width;
            for (int64_t j = 0; j < 16; j++) {
                kern_sparse_key(a, at, page * KERN_PAGE + b * 16 + j, key);
                for (int64_t k = 0; k < width; k++)
                    room[k * 16 + j] = key[k];
            }
        }
        round_rows(room, width, code + b * 16 * width, scale + b * 16);
    }
}
