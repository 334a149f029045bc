// NPY arrays.
#include "data/files/npy.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<NpyHeader> header = parse_npy_header(text_of(data, size), "fuzz");
  if (!header) return require_explained(header), 0;
  require(header->data_offset <= size && header->data_bytes >= 0);
  if (header->fortran_order) return 0;
  const Result<NpyHeader> again = parse_npy_header(npy_header(header->descr, header->shape), "again");
  require(again.has_value() && again->shape == header->shape && again->data_bytes == header->data_bytes);
  return 0;
}
