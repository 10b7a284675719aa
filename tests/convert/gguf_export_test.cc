// What writing a GGUF file promises besides its numbers, which tests/model/gguf_model_test.cc compares.

#include "convert/gguf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "base/number_formats.h"
#include "convert/gguf_encode.h"
#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest::convert {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kDemo = test::project_path("models/demo");

Error error_of(const fs::path& model, const fs::path& file, const GgufExportOptions& options = {}) {
  try {
    export_gguf(model, file, options);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "no error");
}

TEST(GgufExport, SaysHowFarMatricesMoved) {
  const TempFolder folder;
  std::int64_t last = 0, all = 0;
  const Report report = export_gguf(kDemo, folder / "demo.gguf", {.matrices = GgufType::kQ8_0, .experts = GgufType::kQ8_0, .on_progress = [&](auto done, auto total) {
                                                                    EXPECT_GT(done, last);
                                                                    last = done;
                                                                    all = total;
                                                                  }});
  EXPECT_EQ(last, all);
  EXPECT_EQ(report.bytes_after, fs::file_size(folder / "demo.gguf"));
  std::int64_t to_q8 = 0;
  for (const RoleReport& role : report.roles) {
    if (role.to != "Q8_0") continue;
    to_q8 += role.matrices;
    EXPECT_LT(role.bytes_after, role.bytes_before) << role.role;
    EXPECT_GT(role.rms_error, 0) << role.role;
    // Half a step of max / 127, and the rounding of the step to F16, a share of 2^-11, which 127 steps multiply.
    EXPECT_LE(role.max_error, (0.5 + 127 * 0x1p-11) / 127 * (1 + 0x1p-10)) << role.role;
  }
  EXPECT_GT(to_q8, 20);
  for (const RoleReport& role : export_gguf(kDemo, folder / "again.gguf").roles) EXPECT_EQ(role.max_error, 0) << role.role;
}

TEST(GgufExport, KeepsWhatFewBitsWouldHarm) {
  const TempFolder folder;
  export_gguf(kDemo, folder / "demo.gguf", {.matrices = GgufType::kMxfp4, .experts = GgufType::kQ8_0});
  const auto file = value_or_throw(formats::Gguf::open(folder / "demo.gguf"));
  EXPECT_EQ(file.find("token_embd.weight")->type->name, "BF16");
  EXPECT_EQ(file.find("blk.0.ssm_f_a.weight")->type->name, "BF16");
  EXPECT_EQ(file.find("blk.0.attn_q.weight")->type->name, "MXFP4");
  EXPECT_EQ(file.find("blk.2.ffn_gate_exps.weight")->type->name, "MXFP4");  // as stored
}

/// Quantised on the way or before: the same bytes.
TEST(GgufExport, QuantisesAsAFolderIsQuantised) {
  const TempFolder folder;
  convert_checkpoint({.input = kDemo, .output = folder / "mx", .weights = Form::kMxfp4});
  export_gguf(folder / "mx", folder / "a.gguf");
  export_gguf(kDemo, folder / "b.gguf", {.matrices = GgufType::kMxfp4, .experts = GgufType::kMxfp4, .threads = 3});
  const auto a = value_or_throw(formats::Gguf::open(folder / "a.gguf")), b = value_or_throw(formats::Gguf::open(folder / "b.gguf"));
  for (const formats::GgufTensor& tensor : a.tensors()) {
    const formats::GgufTensor* other = b.find(tensor.name);
    ASSERT_TRUE(other && other->type == tensor.type) << tensor.name;
    // k_b is turned, so its groups of 32 are others than those of the folder.
    if (tensor.name.ends_with("attn_k_b.weight")) continue;
    const auto bytes = [](const formats::Gguf& file, const formats::GgufTensor& t) { return file.parts()[t.part].file.bytes().subspan(t.offset, t.bytes); };
    EXPECT_TRUE(std::ranges::equal(bytes(a, tensor), bytes(b, *other))) << tensor.name;
  }
}

TEST(GgufExport, CancelledLeavesNothing) {
  const TempFolder folder;
  for (const int percent : {0, 30, 80}) {  // 80: while it is read again
    std::atomic<bool> cancelled = percent == 0;
    const Error error = error_of(kDemo, folder / "demo.gguf", {.on_progress = [&](auto done, auto total) { cancelled = done * 100 > total * percent; },
                                                               .cancelled = &cancelled});
    EXPECT_EQ(error.code(), ErrorCode::kCancelled) << error.text();
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

TEST(GgufExport, AFullDiskLeavesNothing) {
  const TempFolder folder;
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 5 << 20, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Error error = error_of(kDemo, folder / "demo.gguf");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.text(), HasSubstr("cannot write"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(GgufExport, NamesTensorsWhoseValuesATypeCannotHold) {
  const TempFolder folder;
  synthetic::write_checkpoint(folder / "in", synthetic::config_json({}));
  std::uint64_t offset = 0;
  const auto checkpoint = value_or_throw(formats::Checkpoint::open(folder / "in"));
  for (const auto& entry : checkpoint.entries()) {
    if (entry.name.ends_with("layers.1.self_attn.q_proj.weight")) offset = entry.offset;
  }
  const std::uint16_t large = float_to_bf16(1e6f);
  std::fstream file(folder / "in/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(&large), sizeof large);
  file.close();
  const Error error = error_of(folder / "in", folder / "out.gguf", {.matrices = GgufType::kF16});
  EXPECT_EQ(error.code(), ErrorCode::kInvalidFile);
  EXPECT_THAT(error.text(), AllOf(HasSubstr("blk.1.attn_q.weight"), HasSubstr("which F16 cannot hold")));
  EXPECT_FALSE(fs::exists(folder / "out.gguf"));
  EXPECT_EQ(error_of(folder / "in", folder / "out.gguf", {.matrices = GgufType::kBF16}).text(), "no error");
}

TEST(GgufExport, EveryTypeHoldsItsRangeAndNoMore) {
  const auto holds = [](BlockType type, float value) {
    std::vector<float> row(32);
    row[5] = value;
    return encode_rows(formats::ggml_type(type), row, 32).has_value();
  };
  const auto holds_dense = [](DType dtype, float value) { return encode_rows(*formats::find_ggml_type(dtype), {&value, 1}, 1).has_value(); };
  EXPECT_TRUE(holds_dense(DType::kF16, 65519.0f));
  EXPECT_FALSE(holds_dense(DType::kF16, 65520.0f));
  EXPECT_TRUE(holds_dense(DType::kBF16, 0x1.fep127f));
  EXPECT_FALSE(holds_dense(DType::kBF16, 0x1.fffffep127f));
  EXPECT_TRUE(holds(BlockType::kQ8_0, 127 * 65504.0f));
  EXPECT_FALSE(holds(BlockType::kQ8_0, 128 * 65504.0f));
  EXPECT_TRUE(holds(BlockType::kQ8_0, 1e-38f));  // becomes zero
  EXPECT_FALSE(holds(BlockType::kMxfp4, NAN));
  EXPECT_FALSE(holds(BlockType::kQ8_0, INFINITY));
}

TEST(GgufExport, TakesNoGgufFile) {
  const TempFolder folder;
  folder.write("in.gguf", "GGUF");
  const Error error = error_of(folder / "in.gguf", folder / "out.gguf");
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.text(), HasSubstr("only model folders and .safetensors files can be converted"));
}

}  // namespace
}  // namespace palimpsest::convert
