// PyTorch's schedule files: what is read is valid, runs, and is written and read back the same.
#include "runtime/schedule/csv.h"

#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  for (int replicas : {1, 3}) {
    const Result<CsvSchedule> read = read_schedule_csv(text_of(data, size), "fuzz", {.replicas = replicas});
    if (!read) {
      require_explained(read);
      continue;
    }
    require(check(read->schedule, read->shape, Transport::Buffered).empty());
    const std::vector<double> unit(read->shape.num_stages(), 1);
    simulate(read->schedule, read->shape, {.forward = unit, .backward_input = unit, .backward_weight = unit});
    if (replicas > 1) continue;
    for (CsvContent content : {CsvContent::Computations, CsvContent::Transfers}) {
      const Result<std::string> text = schedule_csv(read->schedule, read->shape, content);
      require(text.has_value());
      const Result<CsvSchedule> again = read_schedule_csv(*text, "again");
      require(again.has_value() && again->schedule.ranks == read->schedule.ranks);
    }
  }
  return 0;
}
