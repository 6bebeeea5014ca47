/* Computes the checksum of memory (CRC-64/NVME), or copies it around the processor's caches meanwhile.
 *
 * An ordinary copy also reads the destination before it overwrites it, and evicts the training's
 * data from the caches. Here each byte is read once, added in a register and written around the
 * caches ("non-temporal"). Built where the package is installed, if there is a C compiler
 * (tools/build_native.py); without it checksum.py does the same, more slowly.
 *
 * The sum follows Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction" (Intel, 2009): a multiplication without carries moves what has been read D bits
 * on, where it is congruent to what comes there. In the reflected order of this sum, moving the
 * first 64 bits of a lane takes x^(D+63) mod P, the second x^(D-1) mod P.
 */

#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define POLYNOMIAL 0x9a6c9329ac4bc9b5ull /* CRC-64/NVME, reflected */
#define AHEAD 4096 /* bytes: the processor prefetches by itself, but not into the next page */
#define LINE 64    /* bytes of a line of the caches, which must be written completely to bypass them */

enum way { PLAIN = 0, NARROW = 1, WIDE = 2 }; /* PLAIN is for processors of every kind */
enum { NARROW_BYTES = 128, WIDE_BYTES = 256 }; /* what one turn reads */
enum { PLAIN_BYTES = 1 << 15 };                /* copied, then summed while they are in a cache */

/* of_byte[n][b]: what the byte b adds, with n further bytes behind it. */
static uint64_t of_byte[8][256], narrow_move[2], wide_move[2];

/* x^exponent mod P. */
static uint64_t power(unsigned exponent)
{
    uint64_t value = 1ull << 63;
    while (exponent--)
        value = (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0);
    return value;
}

__attribute__((constructor)) static void make_tables(void)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0);
        of_byte[0][byte] = value;
    }
    for (unsigned behind = 1; behind < 8; behind++)
        for (unsigned byte = 0; byte < 256; byte++) {
            uint64_t value = of_byte[behind - 1][byte];
            of_byte[behind][byte] = (value >> 8) ^ of_byte[0][(uint8_t)value];
        }
    narrow_move[0] = power(8 * NARROW_BYTES + 63);
    narrow_move[1] = power(8 * NARROW_BYTES - 1);
    wide_move[0] = power(8 * WIDE_BYTES + 63);
    wide_move[1] = power(8 * WIDE_BYTES - 1);
}

/* The checksum of bytes appended to others with the checksum before; neither is inverted. */
static uint64_t sum_bytes(uint64_t before, const uint8_t *bytes, size_t length)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; length >= 8; length -= 8, bytes += 8) {
        uint64_t next;
        memcpy(&next, bytes, sizeof next);
        next ^= before;
        before = of_byte[7][(uint8_t)next] ^ of_byte[6][(uint8_t)(next >> 8)]
                 ^ of_byte[5][(uint8_t)(next >> 16)] ^ of_byte[4][(uint8_t)(next >> 24)]
                 ^ of_byte[3][(uint8_t)(next >> 32)] ^ of_byte[2][(uint8_t)(next >> 40)]
                 ^ of_byte[1][(uint8_t)(next >> 48)] ^ of_byte[0][next >> 56];
    }
#endif
    while (length--)
        before = (before >> 8) ^ of_byte[0][(uint8_t)before ^ *bytes++];
    return before;
}

#ifdef __x86_64__
/* Both below copy one or more turns to a place at the start of a line, or only read them if place
 * is NULL, which is a constant where they are inlined. What they end with is
 * congruent to all that they have read, and short enough for the table. The sum before joins the
 * first bytes that are read, once.
 *
 * ONCE keeps the compiler from reading a value again: other threads may write to the tensor,
 * and the checksum must be that of the copy. */
#define ONCE(value, kind) __asm__("" : "+" kind(value))

__attribute__((target("sse4.1,pclmul"), always_inline)) static inline uint64_t
turn_narrow(uint8_t *place, const uint8_t *origin, size_t length, uint64_t before)
{
    const __m128i move = _mm_set_epi64x((long long)narrow_move[1], (long long)narrow_move[0]);
    __m128i lanes[8] = {0}, joining = _mm_set_epi64x(0, (long long)before);
    uint8_t left[NARROW_BYTES];
    for (size_t at = 0; at < length; at += NARROW_BYTES) {
        const __m128i *from = (const __m128i *)(origin + at);
        __m128i *to = (__m128i *)(place + at);
        _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)from + AHEAD + LINE, _MM_HINT_T0);
        for (int lane = 0; lane < 8; lane++) {
            __m128i value = _mm_loadu_si128(from + lane);
            ONCE(value, "x");
            if (place)
                _mm_stream_si128(to + lane, value);
            __m128i first = _mm_clmulepi64_si128(lanes[lane], move, 0x00);
            __m128i second = _mm_clmulepi64_si128(lanes[lane], move, 0x11);
            lanes[lane] = _mm_xor_si128(_mm_xor_si128(first, second), value);
        }
        lanes[0] = _mm_xor_si128(lanes[0], joining);
        joining = _mm_setzero_si128();
    }
    memcpy(left, lanes, sizeof left);
    return sum_bytes(0, left, sizeof left);
}

__attribute__((target("avx512f,vpclmulqdq"), always_inline)) static inline uint64_t
turn_wide(uint8_t *place, const uint8_t *origin, size_t length, uint64_t before)
{
    const __m512i move = _mm512_set4_epi64((long long)wide_move[1], (long long)wide_move[0],
                                           (long long)wide_move[1], (long long)wide_move[0]);
    __m512i lanes[4] = {0}, joining = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, (long long)before);
    uint8_t left[WIDE_BYTES];
    for (size_t at = 0; at < length; at += WIDE_BYTES) {
        const __m512i *from = (const __m512i *)(origin + at);
        __m512i *to = (__m512i *)(place + at);
        for (int lane = 0; lane < 4; lane++) {
            _mm_prefetch((const char *)(from + lane) + AHEAD, _MM_HINT_T0);
            __m512i value = _mm512_loadu_si512(from + lane);
            ONCE(value, "v");
            if (place)
                _mm512_stream_si512(to + lane, value);
            __m512i first = _mm512_clmulepi64_epi128(lanes[lane], move, 0x00);
            __m512i second = _mm512_clmulepi64_epi128(lanes[lane], move, 0x11);
            lanes[lane] = _mm512_xor_si512(_mm512_xor_si512(first, second), value);
        }
        lanes[0] = _mm512_xor_si512(lanes[0], joining);
        joining = _mm512_setzero_si512();
    }
    memcpy(left, lanes, sizeof left);
    return sum_bytes(0, left, sizeof left);
}

/* Whole turns are copied, or only summed if place is NULL. */
__attribute__((target("sse4.1,pclmul"))) static uint64_t
run_narrow(uint8_t *place, const uint8_t *origin, size_t length, uint64_t before)
{
    return place ? turn_narrow(place, origin, length, before)
                 : turn_narrow(NULL, origin, length, before);
}

__attribute__((target("avx512f,vpclmulqdq"))) static uint64_t
run_wide(uint8_t *place, const uint8_t *origin, size_t length, uint64_t before)
{
    return place ? turn_wide(place, origin, length, before)
                 : turn_wide(NULL, origin, length, before);
}
#endif

/* The best variant that this processor supports. */
int best_way(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        return WIDE;
    if (__builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("pclmul"))
        return NARROW;
#endif
    return PLAIN;
}

static uint64_t copy_plain(uint8_t *place, const uint8_t *origin, size_t length, uint64_t sum)
{
    for (size_t at = 0, size; at < length; at += size) {
        size = length - at < PLAIN_BYTES ? length - at : PLAIN_BYTES;
        memcpy(place + at, origin + at, size);
        sum = sum_bytes(sum, place + at, size);
    }
    return sum;
}

/* Copy length bytes between two areas that do not overlap; return the checksum of the copy,
 * appended to bytes with the checksum before. */
uint64_t copy_summed(uint8_t *place, const uint8_t *origin, size_t length, uint64_t before, int way)
{
    uint64_t sum = ~before;
    size_t done = 0;
#ifdef __x86_64__
    if (way != PLAIN) {
        size_t turn = way == WIDE ? WIDE_BYTES : NARROW_BYTES;
        size_t head = -(uintptr_t)place % LINE;
        if (head > length)
            head = length;
        sum = copy_plain(place, origin, head, sum);
        size_t body = (length - head) / turn * turn;
        done = head + body;
        if (body) {
            uint8_t *to = place + head;
            const uint8_t *from = origin + head;
            sum = way == WIDE ? run_wide(to, from, body, sum) : run_narrow(to, from, body, sum);
            _mm_sfence(); /* makes the copy visible to other threads */
        }
    }
#endif
    return ~copy_plain(place + done, origin + done, length - done, sum);
}

/* The checksum of bytes, appended to others with the checksum before. */
uint64_t sum_up(const uint8_t *origin, size_t length, uint64_t before, int way)
{
    uint64_t sum = ~before;
    size_t body = 0;
#ifdef __x86_64__
    if (way != PLAIN)
        body = length / (way == WIDE ? WIDE_BYTES : NARROW_BYTES)
               * (way == WIDE ? WIDE_BYTES : NARROW_BYTES);
    if (body)
        sum = way == WIDE ? run_wide(NULL, origin, body, sum) : run_narrow(NULL, origin, body, sum);
#endif
    return ~sum_bytes(sum, origin + body, length - body);
}

/* The product of two polynomials modulo P. */
static uint64_t multiply(uint64_t first, uint64_t second)
{
    uint64_t product = 0;
    for (; first; first <<= 1) {
        if (first >> 63)
            product ^= second;
        second = (second >> 1) ^ (second & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

/* The checksum of two adjacent chunks; length is that of the second: each of its bits multiplies the
 * first checksum by x, and x^(8 length) is a product of squares of squares of x^8. */
uint64_t combine(uint64_t first, uint64_t second, size_t length)
{
    for (uint64_t square = 1ull << 55; length; length >>= 1, square = multiply(square, square))
        if (length & 1)
            first = multiply(first, square);
    return first ^ second;
}
