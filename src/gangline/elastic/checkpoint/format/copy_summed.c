/* Copies memory around the processor's caches and computes its checksum (CRC-64/NVME) meanwhile.
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

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define POLYNOMIAL 0x9a6c9329ac4bc9b5ull /* CRC-64/NVME, reflected */
#define AHEAD 4096 /* bytes: the processor prefetches by itself, but not into the next page */
#define LINE 64    /* bytes of a line of the caches, which must be written completely to bypass them */

enum way { NARROW = 1, WIDE = 2 };
enum { NARROW_BYTES = 128, WIDE_BYTES = 256 }; /* what one turn copies */

static uint64_t of_byte[256], narrow_move[2], wide_move[2];

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
        of_byte[byte] = value;
    }
    narrow_move[0] = power(8 * NARROW_BYTES + 63);
    narrow_move[1] = power(8 * NARROW_BYTES - 1);
    wide_move[0] = power(8 * WIDE_BYTES + 63);
    wide_move[1] = power(8 * WIDE_BYTES - 1);
}

/* The checksum of bytes appended to others with the checksum before; neither is inverted. */
static uint64_t sum_bytes(uint64_t before, const uint8_t *bytes, size_t length)
{
    while (length--)
        before = (before >> 8) ^ of_byte[(uint8_t)before ^ *bytes++];
    return before;
}

/* Both below copy one or more turns to a place at the start of a line. What they end with is
 * congruent to all that they have read, and short enough for the table. The sum before joins the
 * first bytes that are read, once.
 *
 * ONCE keeps the compiler from reading a value again: other threads may write to the tensor,
 * and the checksum must be that of the copy. */
#define ONCE(value, kind) __asm__("" : "+" kind(value))

__attribute__((target("sse4.1,pclmul"))) static uint64_t
copy_narrow(uint8_t *place, const uint8_t *origin, size_t length, uint64_t before)
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

__attribute__((target("avx512f,vpclmulqdq"))) static uint64_t
copy_wide(uint8_t *place, const uint8_t *origin, size_t length, uint64_t before)
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

/* The best variant that this processor supports; 0 if it supports none. */
int best_way(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        return WIDE;
    if (__builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("pclmul"))
        return NARROW;
    return 0;
}

/* Copy length bytes between two areas that do not overlap; return the checksum of the copy,
 * appended to bytes with the checksum before. */
uint64_t copy_summed(uint8_t *place, const uint8_t *origin, size_t length, uint64_t before, int way)
{
    uint64_t sum = ~before;
    size_t turn = way == WIDE ? WIDE_BYTES : NARROW_BYTES;
    size_t head = -(uintptr_t)place % LINE;
    if (head > length)
        head = length;
    memcpy(place, origin, head);
    sum = sum_bytes(sum, place, head);
    size_t body = (length - head) / turn * turn;
    if (body) {
        uint8_t *to = place + head;
        const uint8_t *from = origin + head;
        sum = way == WIDE ? copy_wide(to, from, body, sum) : copy_narrow(to, from, body, sum);
        _mm_sfence(); /* makes the copy visible to other threads */
    }
    size_t done = head + body;
    memcpy(place + done, origin + done, length - done);
    return ~sum_bytes(sum, place + done, length - done);
}
