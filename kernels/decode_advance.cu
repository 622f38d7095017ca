// The step from one decode pass to the next without the host: what was chosen becomes what is fed.
//
// token int32 [R]; ids, positions int32 [R]; desc int32 [R][4], whose start grows by one; draw uint32 [R];
// items int32 [count][4], whose history (the third word) grows by one. Rows without an item array: count 0;
// further item arrays of the same batch: R 0. Grid: a thread an entry of the longer of the two, block 256.
// Contract sections: 5 (descriptors), 8 (draw numbers). Verdict: the only variant.
extern "C" __global__ void __launch_bounds__(256)
    decode_advance(const int* __restrict__ token, int* __restrict__ ids, int* __restrict__ positions,
                   int* __restrict__ desc, unsigned* __restrict__ draw, int R, int* __restrict__ items,
                   int count) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < R) {
    ids[i] = token[i];
    positions[i] += 1;
    desc[4 * i + 2] += 1;
    draw[i] += 1;
  }
  if (i < count) items[4 * i + 2] += 1;
}
