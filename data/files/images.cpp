#include "data/files/images.h"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <cctype>
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

Result<Image> decode_png(std::string_view bytes, const std::string& name, std::int64_t most_pixels) {
  // The library stops reading at the last pixel and would not notice a missing end.
  constexpr std::string_view kEnd("\0\0\0\0IEND\xae\x42\x60\x82", 12);
  if (!bytes.ends_with(kEnd)) return damaged(name, "its end is missing");
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  if (!::png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()))
    return damaged(name, png.message);
  if (std::int64_t{png.width} * png.height > most_pixels) {
    ::png_image_free(&png);
    return damaged(name, "more than " + std::to_string(most_pixels >> 20) + " megapixels");
  }
  const bool grey = (png.format & PNG_FORMAT_FLAG_COLOR) == 0;
  png.format = grey ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  Image image{.height = png.height, .width = png.width, .channels = grey ? 1 : 3};
  image.pixels.resize(PNG_IMAGE_SIZE(png));
  if (!::png_image_finish_read(&png, nullptr, image.pixels.data(), 0, nullptr))
    return damaged(name, png.message);
  return image;
}

}  // namespace millrace
