// The loader of images beside libjpeg-turbo's plain decode: images per CPU second of one thread, and the
// speed of two threads beside one. argv: a folder of class folders of JPEGs, rounds.
#include <turbojpeg.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "benchmarks/thread_seconds.h"
#include "data/loading/dataset.h"
#include "data/readers/jpeg.h"
#include "runtime/base/median.h"
#include "runtime/device/host_memory.h"

namespace millrace {
namespace {

std::vector<std::string> read_images(const std::string& folder) {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string kind = entry.path().extension().string();
    if (!entry.is_regular_file() || (kind != ".jpg" && kind != ".jpeg" && kind != ".JPEG")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return all;
}

/// Returns the CPU seconds of decoding all images with one decoder and one buffer.
double plain_decode(const std::vector<std::string>& images, int flags) {
  const std::unique_ptr<void, int (*)(void*)> decoder(tjInitDecompress(), tjDestroy);
  std::vector<unsigned char> pixels;
  const double start = thread_seconds();
  for (const std::string& bytes : images) {
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    int width = 0, height = 0, sampling = 0, space = 0;
    if (tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &sampling, &space) != 0)
      continue;
    pixels.resize(3 * static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
    tjDecompress2(decoder.get(), data, bytes.size(), pixels.data(), width, 0, height, TJPF_RGB, flags);
  }
  return thread_seconds() - start;
}

double own_decode(const std::vector<std::string>& images) {
  RgbImage image;
  std::string error;
  const double start = thread_seconds();
  for (const std::string& bytes : images) decode_jpeg(bytes, image, error);
  return thread_seconds() - start;
}

double samples(const Dataset& set, std::uint64_t seed) {
  const std::vector<char> wanted(2, 1);
  const double start = thread_seconds();
  for (std::int64_t i = 0; i < set.size(); ++i) set.get(i, seed + static_cast<std::uint64_t>(i), wanted);
  return thread_seconds() - start;
}

struct EpochSeconds {
  std::vector<double> wall, cpu;  ///< by round; cpu: of all threads
};

/// Adds what an epoch by so many workers takes.
void add_epoch(const std::shared_ptr<const Dataset>& set, const std::vector<FieldSpec>& fields, int workers,
               EpochSeconds& seconds) {
  constexpr int kBatch = 8;
  const auto source = make_loader(set, {.microbatch = kBatch, .workers = workers, .fields = fields});
  if (!source) return;
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu = std::clock();
  for (std::int64_t batch = 0; batch < set->size() / kBatch; ++batch) (*source)->get(batch);
  seconds.wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  seconds.cpu.push_back(static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;
  if (argc < 2) return std::fprintf(stderr, "decode: name a folder of class folders of JPEGs\n"), 2;
  at::set_num_threads(1);
  install_host_allocator();  // as a run has it
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const std::vector<FieldSpec> fields{{.name = "input", .shape = {3, 224, 224}},
                                      {.name = "label", .dtype = at::kLong, .limit = 1000}};
  const auto set = make_dataset({.path = argv[1], .fields = fields});
  if (!set) return std::fprintf(stderr, "decode: %s\n", to_string(set.problems()).c_str()), 3;
  if (!*set) return std::fprintf(stderr, "decode: %s has no images to train with\n", argv[1]), 3;
  const std::vector<std::string> images = read_images(argv[1]);
  const auto count = static_cast<double>(images.size());
  std::vector<double> plain, exact, own, whole;
  EpochSeconds one, two;
  for (int round = 0; round < rounds; ++round) {
    plain.push_back(count / plain_decode(images, TJFLAG_FASTDCT));
    exact.push_back(count / plain_decode(images, TJFLAG_ACCURATEDCT));
    own.push_back(count / own_decode(images));
    whole.push_back(static_cast<double>((*set)->size()) / samples(**set, static_cast<std::uint64_t>(round)));
    add_epoch(*set, fields, 1, one);
    add_epoch(*set, fields, 2, two);
  }
  std::printf("%zu images; medians of %d rounds; images per CPU second of one thread:\n", images.size(),
              rounds);
  const double base = median(exact);
  for (const auto& [name, values] : {std::pair{"libjpeg-turbo, exact DCT", &exact},
                                     {"libjpeg-turbo, fast DCT", &plain},
                                     {"decode_jpeg", &own},
                                     {"a sample: decode, crop, resize to 224, flip, normalise", &whole}})
    std::printf("%-56s %8.1f  %5.1f %%\n", name, median(*values), 100 * median(*values) / base);
  std::printf("an epoch by one worker %.3f s, by two %.3f s: %.2fx\n", median(one.wall), median(two.wall),
              median(one.wall) / median(two.wall));
  // This ratio shows what the threads cost each other. On two free cores it is the speed of two beside one.
  std::printf("CPU seconds %.3f and %.3f: %.2fx\n", median(one.cpu), median(two.cpu),
              2 * median(one.cpu) / median(two.cpu));
}
