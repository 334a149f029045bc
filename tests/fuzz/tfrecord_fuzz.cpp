// TFRecord files and the tf.Examples in them. The first byte says whether the rest is a file or one message,
// since checksums keep a fuzzer out of the messages.
#include "data/files/tfrecord.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  std::string_view bytes = text_of(data, size);
  if (bytes.empty()) return 0;
  const bool file = bytes.front() == 'F';
  bytes.remove_prefix(1);
  if (!file) {
    const Result<Example> example = parse_example(bytes, "fuzz");
    if (!example) return require_explained(example), 0;
    const std::string written = serialise_example(*example);
    const Result<Example> again = parse_example(written, "again");
    require(again.has_value() && serialise_example(*again) == written);
    return 0;
  }
  std::string copied;
  TfRecordReader reader(bytes, "fuzz");
  while (!reader.at_end()) {
    const Result<std::string_view> record = reader.next();
    if (!record) return require_explained(record), 0;
    append_tfrecord(copied, *record);
  }
  require(copied == bytes);
  return 0;
}
