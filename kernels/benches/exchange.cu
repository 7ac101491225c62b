// What two cards give each other, under load, and what a hand-shake costs. For who has two that reach each other:
//
//   nvcc -std=c++17 -O3 -arch=native -cudart static -I kernels/device -o exchange kernels/benches/exchange.cu && ./exchange
//
// Card 0 routes: it sends ids of experts and an input, card 1 takes them, and returns the rows of its experts, which card 0
// collects. Every word is compared on the cards. It ends with 1 where one is wrong or a card waits in vain.
#include "exchange.c"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void must(cudaError_t error, const char *what, int line) {
    if (error == cudaSuccess) return;
    std::printf("line %d: %s: %s\n", line, what, cudaGetErrorString(error));
    std::exit(1);
}
#define MUST(call) must(call, #call, __LINE__)

constexpr uint EXPERTS = 64, USED = 8, WIDTH = 2048, TOKENS = 64, ROWS = USED * TOKENS;
constexpr uint MESSAGE = 4 << 20, SLOTS = MESSAGE / SLOT + 1;
constexpr ulong PATIENCE = 2000000000;

__device__ uint word_of(ulong i, uint step) { return (uint)(i * 2654435761u) ^ (step + 5) * 40503u; }
__device__ float value_of(ulong i, uint step) { return (float)((i * 31 + step * 17) & 0xffff); }

__global__ void fill_message(uint *p, ulong n, const uint *step) {
    for (ulong i = blockIdx.x * 256ul + threadIdx.x; i < n; i += gridDim.x * 256ul) p[i] = word_of(i, *step);
}
__global__ void check_message(const uint *p, ulong n, const uint *step, uint *wrong) {
    for (ulong i = blockIdx.x * 256ul + threadIdx.x; i < n; i += gridDim.x * 256ul)
        if (p[i] != word_of(i, *step)) atomicAdd(wrong, 1);
}
__global__ void fill_ids(uint *ids, uint n, const uint *step) {
    for (uint i = threadIdx.x; i < n; i += 256) {
        const uint x = (i + 1) * 2654435761u ^ *step * 2246822519u;
        ids[i] = (x ^ x >> 13) % EXPERTS;
    }
}
__global__ void fill_rows(float *y, ulong n, const uint *step) {
    for (ulong i = blockIdx.x * 256ul + threadIdx.x; i < n; i += gridDim.x * 256ul) y[i] = value_of(i, *step);
}
__global__ void poison_rows(float *y, ulong n) {
    for (ulong i = blockIdx.x * 256ul + threadIdx.x; i < n; i += gridDim.x * 256ul) y[i] = -1.0f;
}
__global__ void check_rows(const float *y, const uint *ids, const uint *turns, ulong n, const uint *step, uint *wrong) {
    for (ulong i = blockIdx.x * 256ul + threadIdx.x; i < n; i += gridDim.x * 256ul) {
        const uint theirs = turns[2 * ids[i / WIDTH] + 1] == 0;
        if (y[i] != (theirs ? value_of(i, *step) : -1.0f)) atomicAdd(wrong, 1);
    }
}
__global__ void count(uint *step) { *step += 1; }
// Up to `most` ns, another time in each step.
__global__ void dawdle(uint seed, const uint *step, uint most) {
    uint x = (seed + *step) * 747796405u + 2891336453u;
    x ^= x >> 15;
    const ulong start = nanoseconds();
    while (most && nanoseconds() - start < x % most) {
    }
}

template <class T> T *memory(int card, size_t bytes) {
    void *p;
    MUST(cudaSetDevice(card));
    MUST(cudaMalloc(&p, bytes));
    MUST(cudaMemset(p, 0, bytes));
    return (T *)p;
}

// All slots as if `epoch` had been exchanged last.
static void set(uint *ends, int card, uint slots, uint epoch, bool taken) {
    std::vector<uint> words(slots * END, 0);
    for (uint slot = 0; slot < slots; slot++) {
        words[slot * END + COUNT] = epoch;
        if (taken) words[slot * END] = epoch;
    }
    MUST(cudaSetDevice(card));
    MUST(cudaMemcpy(ends, words.data(), words.size() * 4, cudaMemcpyHostToDevice));
}

struct Card {
    cudaStream_t stream;
    uint *ids, *positions, *turns, *step, *wrong, *trouble, *data;
    float *y;
    cudaGraphExec_t graph;
};
static Card cards[2];
static uint *mail_ends[2], *board_ends[2]; // of who writes, of who reads
static uchar *mail_words, *board_words;
static ulong *reports;

// One exchange as both cards do it; `checked` with values that are compared and delays of up to `most` ns.
static void exchange(uint tokens, ulong bytes, bool checked, uint most) {
    const ulong ids_bytes = (tokens * USED * 4 + 15) / 16 * 16;
    const uint rows = tokens * USED, slots = (ids_bytes + bytes + SLOT - 1) / SLOT;
    const ulong values = (ulong)rows * WIDTH;
    Card &a = cards[0], &b = cards[1];
    MUST(cudaSetDevice(0));
    if (checked) {
        fill_message<<<32, 256, 0, a.stream>>>(a.data, bytes / 4, a.step);
        fill_ids<<<1, 256, 0, a.stream>>>(a.ids, rows, a.step);
        dawdle<<<1, 1, 0, a.stream>>>(1, a.step, most);
    }
    gantry_exchange_send<<<slots, EXCHANGE_GROUP, 0, a.stream>>>(
        (uchar *)a.ids, (uchar *)a.data, 0, 0, 0, 0, mail_words, mail_ends[0], mail_ends[1], a.trouble, reports,
        ids_bytes, bytes, 0, 0, 0, 0, PATIENCE, 1);
    if (checked) {
        poison_rows<<<32, 256, 0, a.stream>>>(a.y, values);
        dawdle<<<1, 1, 0, a.stream>>>(2, a.step, most);
    }
    gantry_exchange_collect<<<rows, EXCHANGE_GROUP, 0, a.stream>>>(
        a.y, a.ids, a.positions, a.turns, (float *)board_words, board_ends[1], a.trouble, reports, WIDTH, PATIENCE, 2,
        WIDTH, USED, EXPERTS);
    if (checked) {
        check_rows<<<64, 256, 0, a.stream>>>(a.y, a.ids, a.turns, values, a.step, a.wrong);
        count<<<1, 1, 0, a.stream>>>(a.step);
    }
    MUST(cudaSetDevice(1));
    if (checked) dawdle<<<1, 1, 0, b.stream>>>(3, b.step, most);
    gantry_exchange_receive<<<slots, EXCHANGE_GROUP, 0, b.stream>>>(
        (uchar *)b.ids, (uchar *)b.data, 0, 0, 0, 0, mail_words, mail_ends[1], mail_ends[0], b.trouble, reports + 1,
        ids_bytes, bytes, 0, 0, 0, 0, PATIENCE, 3);
    if (checked) {
        check_message<<<32, 256, 0, b.stream>>>(b.data, bytes / 4, b.step, b.wrong);
        fill_rows<<<64, 256, 0, b.stream>>>(b.y, values, b.step);
        dawdle<<<1, 1, 0, b.stream>>>(4, b.step, most);
    }
    gantry_exchange_return<<<rows, EXCHANGE_GROUP, 0, b.stream>>>(
        b.y, b.ids, b.positions, b.turns, (float *)board_words, board_ends[0], board_ends[1], b.trouble, WIDTH, WIDTH,
        USED, EXPERTS);
    if (checked) count<<<1, 1, 0, b.stream>>>(b.step);
    MUST(cudaGetLastError());
}

// A chain of exchanges as one graph on each card.
static void record(uint layers, uint tokens, ulong bytes, bool checked) {
    cudaGraph_t graphs[2];
    for (Card &card : cards) MUST(cudaStreamBeginCapture(card.stream, cudaStreamCaptureModeThreadLocal));
    for (uint layer = 0; layer < layers; layer++) exchange(tokens, bytes, checked, 5000);
    for (int i = 0; i < 2; i++) MUST(cudaStreamEndCapture(cards[i].stream, &graphs[i]));
    for (int i = 0; i < 2; i++) {
        MUST(cudaSetDevice(i));
        MUST(cudaGraphInstantiate(&cards[i].graph, graphs[i], 0));
        MUST(cudaGraphDestroy(graphs[i]));
    }
}

static void replay(uint times) {
    for (uint i = 0; i < times * 2; i++) {
        MUST(cudaSetDevice(1 - i % 2));
        MUST(cudaGraphLaunch(cards[1 - i % 2].graph, cards[1 - i % 2].stream));
    }
}

static void check(const char *what) {
    bool fine = true;
    for (int i = 0; i < 2; i++) {
        uint wrong;
        MUST(cudaSetDevice(i));
        MUST(cudaStreamSynchronize(cards[i].stream));
        MUST(cudaMemcpy(&wrong, cards[i].wrong, 4, cudaMemcpyDeviceToHost));
        fine = fine && !wrong && !reports[i];
        if (wrong || reports[i]) std::printf("%s: card %d: %u wrong words, report %lx\n", what, i, wrong, reports[i]);
    }
    if (!fine) std::exit(1);
    std::printf("%-40s fine\n", what);
}

static void measure(const char *what, uint tokens, ulong bytes) {
    const uint layers = 100, times = 61;
    record(layers, tokens, bytes, false);
    std::vector<float> all;
    cudaEvent_t start, end;
    MUST(cudaSetDevice(0));
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&end));
    for (uint i = 0; i < times; i++) {
        float ms;
        MUST(cudaSetDevice(1));
        MUST(cudaGraphLaunch(cards[1].graph, cards[1].stream));
        MUST(cudaSetDevice(0));
        MUST(cudaEventRecord(start, cards[0].stream));
        MUST(cudaGraphLaunch(cards[0].graph, cards[0].stream));
        MUST(cudaEventRecord(end, cards[0].stream));
        for (Card &card : cards) MUST(cudaStreamSynchronize(card.stream));
        MUST(cudaEventElapsedTime(&ms, start, end));
        all.push_back(ms * 1e3f / layers);
    }
    std::sort(all.begin(), all.end());
    std::printf("%-40s %.2f us a layer, at least %.2f\n", what, all[times / 2], all[0]);
}

int main() {
    std::vector<uint> turns;
    // Two fifths of the experts are card 1's.
    for (uint e = 0; e < EXPERTS; e++) turns.insert(turns.end(), {1, e * 7 % 5 < 2 ? 0u : 1u});
    for (int i = 0; i < 2; i++) {
        Card &card = cards[i];
        int reaches;
        MUST(cudaSetDevice(i));
        MUST(cudaDeviceCanAccessPeer(&reaches, i, 1 - i));
        if (!reaches) return std::printf("card %d does not reach the other\n", i), 1;
        MUST(cudaDeviceEnablePeerAccess(1 - i, 0));
        MUST(cudaStreamCreateWithFlags(&card.stream, cudaStreamNonBlocking));
        card.data = memory<uint>(i, MESSAGE);
        card.y = memory<float>(i, (size_t)ROWS * WIDTH * 4);
        card.ids = memory<uint>(i, ROWS * 4);
        card.positions = memory<uint>(i, TOKENS * 4);
        card.turns = memory<uint>(i, turns.size() * 4);
        MUST(cudaMemcpy(card.turns, turns.data(), turns.size() * 4, cudaMemcpyHostToDevice));
        for (uint **word : {&card.step, &card.wrong, &card.trouble}) *word = memory<uint>(i, 4);
        mail_ends[i] = memory<uint>(i, SLOTS * END * 4);
        board_ends[1 - i] = memory<uint>(i, ROWS * END * 4);
    }
    mail_words = memory<uchar>(1, SLOTS * SLOT);
    board_words = memory<uchar>(0, (size_t)ROWS * WIDTH * 4);
    MUST(cudaHostAlloc(&reports, 16, cudaHostAllocPortable));
    reports[0] = reports[1] = 0;
    // The epochs wrap on the way.
    for (int i = 0; i < 2; i++) {
        set(mail_ends[i], i, SLOTS, 0xffffff00u, i == 0);
        set(board_ends[i], 1 - i, ROWS, 0xffffff80u, false);
    }
    for (uint i = 0; i < 1000; i++) exchange(1 + i * 7 % TOKENS, 16u << i % 18, true, i % 3 == 2 ? 0 : i % 3 ? 2000 : 20000);
    check("1000 exchanges, sizes and delays");
    record(10, 3, 4608, true);
    replay(200);
    check("200 replays of 10 layers, delays");
    record(10, 64, 1 << 20, true);
    replay(50);
    check("50 replays of 10 layers of 1 MiB, delays");
    measure("16 bytes, 8 rows of 2048", 1, 16);
    measure("1 token of 4.6 KB, 8 rows of 2048", 1, 4608);
    measure("7 tokens", 7, 7 * 4608);
    measure("64 tokens", 64, 64 * 4608);
    check("after all that");
    return 0;
}
