#include "data/files/images.h"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csetjmp>
#include <cstring>
#include <memory>

#include "runtime/base/error.h"

namespace millrace {
namespace {

struct TurboClose {
  void operator()(void* handle) const { ::tjDestroy(handle); }
};
using Turbo = std::unique_ptr<void, TurboClose>;

Problem damaged(const std::string& name, const std::string& what) {
  return {name, std::string("cannot be decoded: ") + what, "the file is damaged: take it out, or replace it"};
}

/// One decoding of one PNG, to samples of 8 bits as they are stored. libpng reports an error by a jump out of
/// its C functions, so that no function here holds a C++ object across one.
class PngReader {
 public:
  explicit PngReader(std::string_view bytes) : rest_(bytes) {}
  ~PngReader() { ::png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Each returns false at an error. In this order: open, start, read.
  bool open() {
    if (setjmp(failed_)) return false;
    png_ = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, this, stop_at_error, pass_warning);
    if (png_) info_ = ::png_create_info_struct(png_);
    if (!info_) return false;
    ::png_set_read_fn(png_, this, take_bytes);
    ::png_set_benign_errors(png_, 1);
    // All chunks but those of samples, palette and transparency are skipped: no colour management, no text.
    ::png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    ::png_read_info(png_, info_);
    return true;
  }
  bool start() {
    if (setjmp(failed_)) return false;
    ::png_set_expand(png_);    // palettes to RGB, grey of 1 to 4 bits to 8, tRNS to alpha
    ::png_set_strip_16(png_);  // the high byte
    passes_ = ::png_set_interlace_handling(png_);
    ::png_read_update_info(png_, info_);
    return true;
  }
  /// `to` has height() rows of width() pixels of channels() bytes.
  bool read(png_bytep to) {
    if (setjmp(failed_)) return false;
    const std::size_t row_bytes = ::png_get_rowbytes(png_, info_);
    for (int pass = 0; pass < passes_; ++pass) {
      for (std::int64_t row = 0; row < height(); ++row)
        ::png_read_row(png_, to + static_cast<std::size_t>(row) * row_bytes, nullptr);
    }
    ::png_read_end(png_, nullptr);  // notices a missing end
    return true;
  }

  std::int64_t width() const { return ::png_get_image_width(png_, info_); }
  std::int64_t height() const { return ::png_get_image_height(png_, info_); }
  int channels() const { return ::png_get_channels(png_, info_); }
  std::string error() const { return message_; }

 private:
  [[noreturn]] static void stop_at_error(png_structp png, png_const_charp message) {
    auto* reader = static_cast<PngReader*>(::png_get_error_ptr(png));
    std::strncpy(reader->message_, message, sizeof reader->message_ - 1);
    std::longjmp(reader->failed_, 1);
  }
  /// libpng would go on without the transparency.
  static void pass_warning(png_structp png, png_const_charp message) {
    if (std::string_view(message) == "tRNS: CRC error") ::png_error(png, message);
  }
  static void take_bytes(png_structp png, png_bytep to, std::size_t count) {
    auto* reader = static_cast<PngReader*>(::png_get_io_ptr(png));
    if (count > reader->rest_.size()) ::png_error(png, "its end is missing");
    std::memcpy(to, reader->rest_.data(), count);
    reader->rest_.remove_prefix(count);
  }

  std::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
  std::jmp_buf failed_;
  char message_[256] = "no memory for libpng";
};

}  // namespace

bool is_image_name(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 4> kNames{".jpg", ".jpeg", ".png", ".webp"};
  return std::ranges::find(kNames, extension) != kNames.end();
}

bool is_png(std::string_view bytes) {
  return bytes.starts_with("\x89PNG\r\n\x1a\n");
}

std::string encode_jpeg(const Image& image, int quality) {
  const Turbo turbo(::tjInitCompress());
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool grey = image.channels == 1;
  const int failed = ::tjCompress2(turbo.get(), reinterpret_cast<const unsigned char*>(image.pixels.data()),
                                   static_cast<int>(image.width), 0, static_cast<int>(image.height),
                                   grey ? TJPF_GRAY : TJPF_RGB, &bytes, &size,
                                   grey ? TJSAMP_GRAY : TJSAMP_420, quality, TJFLAG_FASTDCT);
  const std::unique_ptr<unsigned char, void (*)(unsigned char*)> owner(bytes, ::tjFree);
  if (failed)
    throw DataError("a JPEG of " + std::to_string(image.width) + " x " + std::to_string(image.height) +
                        " pixels cannot be made: " + ::tjGetErrorStr2(turbo.get()),
                    "JPEG sides are at most 65,500 pixels: use png or npz for larger records");
  return {reinterpret_cast<const char*>(bytes), size};
}

Result<Image> decode_jpeg(std::string_view bytes, const std::string& name) {
  const Turbo turbo(::tjInitDecompress());
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, sampling = 0, space = 0;
  if (::tjDecompressHeader3(turbo.get(), data, bytes.size(), &width, &height, &sampling, &space) != 0)
    return damaged(name, ::tjGetErrorStr2(turbo.get()));
  if (std::int64_t{width} * height > kMostPixels) return damaged(name, "more than 2^28 pixels");
  const bool grey = space == TJCS_GRAY;
  Image image{.height = height, .width = width, .channels = grey ? 1 : 3};
  image.pixels.resize(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
                      static_cast<std::size_t>(image.channels));
  if (::tjDecompress2(turbo.get(), data, bytes.size(), reinterpret_cast<unsigned char*>(image.pixels.data()),
                      width, 0, height, grey ? TJPF_GRAY : TJPF_RGB, TJFLAG_STOPONWARNING) != 0)
    return damaged(name, ::tjGetErrorStr2(turbo.get()));
  return image;
}

std::string encode_png(const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png.flags = PNG_IMAGE_FLAG_FAST;
  // The buffer has the library's upper bound, so that one pass is enough.
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(png), '\0');
  png_alloc_size_t size = bytes.size();
  if (!::png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr))
    throw DataError(std::string("a PNG cannot be made: ") + png.message);
  bytes.resize(size);
  return bytes;
}

void lay_on_black(Image& image) {
  const auto colours = static_cast<std::size_t>(image.channels);
  const std::size_t count = image.pixels.size() / (colours + 1);
  auto* to = reinterpret_cast<unsigned char*>(image.pixels.data());
  const unsigned char* from = to;
  for (std::size_t i = 0; i < count; ++i, from += colours + 1) {
    const int alpha = from[colours];
    for (std::size_t c = 0; c < colours; ++c)
      *to++ = static_cast<unsigned char>((from[c] * alpha + 127) / 255);
  }
  image.pixels.resize(count * colours);
}

Result<Image> decode_png(std::string_view bytes, const std::string& name, std::int64_t most_pixels) {
  PngReader reader(bytes);
  if (!reader.open()) return damaged(name, reader.error());
  if (reader.height() * reader.width() > most_pixels)
    return damaged(name, "more than " + std::to_string(most_pixels >> 20) + " megapixels");
  if (!reader.start()) return damaged(name, reader.error());
  const int stored = reader.channels();
  Image image{.height = reader.height(), .width = reader.width(), .channels = stored < 3 ? 1 : 3};
  image.pixels.resize(static_cast<std::size_t>(image.height * image.width * stored));
  if (!reader.read(reinterpret_cast<unsigned char*>(image.pixels.data())))
    return damaged(name, reader.error());
  if (stored != image.channels) lay_on_black(image);
  return image;
}

}  // namespace millrace
