#include <algorithm>
#include <filesystem>

#include "cli/budget.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/pictures.h"
#include "cli/plan_report.h"
#include "cli/setup.h"
#include "formats/atomic_file.h"
#include "machine/machine.h"
#include "machine/memory.h"
#include "model/weight_spec.h"
#include "ops/device.h"
#include "report/terminal.h"
#include "runtime/snapshot_policy.h"

namespace palimpsest::cli {
namespace {

/// The largest file of weights at a path, for the speed of the disk it lies on; empty when there is
/// none.
std::filesystem::path largest_weight_file(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return path;
  std::filesystem::path largest;
  std::uintmax_t most = 0;
  std::error_code failed;
  for (const auto& item : std::filesystem::directory_iterator(path, failed)) {
    const auto size = item.path().extension() == ".safetensors" ? item.file_size(failed) : 0;
    if (!failed && size > most) most = size, largest = item.path();
  }
  return largest;
}

/// What an H200 has free: 139.8 GiB less what the driver keeps for itself.
constexpr std::int64_t kFreeOnH200 = std::int64_t{139} << 30;

void add_replays(PlanReport& report) {
  const std::int64_t context = report.plan.memory.context, count = report.plan.snapshots.count;
  report.densest_bytes = static_cast<std::int64_t>(snapshot_positions(context, 1).size()) *
                         report.plan.snapshots.bytes;
  report.spacing = spacing_for(context, count);
  for (std::int64_t following = 100; following < context; following *= 10) {
    const std::int64_t before = context - following;
    report.replays.push_back(
        {following,
         count == 0 ? before : std::min(before, replay_bound(following, report.spacing))});
  }
}

void add_speed(PlanReport& report, const Options& options) {
  const ModelPlan& plan = report.plan;
  if (const auto file = largest_weight_file(options.model); !file.empty())
    report.disk_bandwidth = measure_disk_bandwidth(file);
  if (!plan.on_host()) {  // on one device, or not at all
    report.device = find_device("h200");
    if (report.host_experts) report.host_experts->speed = host_experts_speed(plan.decode, plan.bus_step, *report.device, report.host_experts->reads);
    if (!plan.fits()) return;
    report.on_device = device_speed(plan.decode, 0, *report.device);
    const auto speed = report.host_experts ? report.host_experts->speed : host_experts_speed(plan.decode, plan.bus_step, *report.device, 0);
    report.on_device->tokens_per_second = report.request.offload.compute ? speed.compute : speed.stream;
    return;
  }
  report.memory_bandwidth = measure_memory_reads(options.threads > 0 ? static_cast<int>(options.threads) : probe_machine().cores);
  const std::int64_t room = plan.limit - (plan.total() - plan.memory.weights);
  report.speed = decode_speed(plan.decode, plan.stored_in(WeightKind::kRoutedExperts), room,
                              report.memory_bandwidth, report.disk_bandwidth);
  report.device = find_device(options.device);
  if (report.device)
    report.on_device = device_speed(plan.decode, plan.memory.total(), *report.device);
}

}  // namespace

int plan(const Options& options) {
  if (options.svg) require_writable(*options.svg);
  const MeasuredOutline outlined = outline_model(options);
  PlanReport report{.model = outlined.model,
                    .request = {.session = session_options(options),
                                .sequences = options.sequences,
                                .process = outlined.process}};
  report.has_budget = options.budget.has_value();
  if (options.device == "cuda") report.request.where = DeviceKind::kCuda;
  report.request.is_budget = report.has_budget;
  report.request.offload = weight_offload(options);
  report.host_experts = weigh_host_experts(options, *outlined.model, decode_cost(*outlined.model, 0, DType::kBF16));
  if (options.host_experts.value_or("auto") == "auto") report.request.offload.compute = report.host_experts && report.host_experts->speed.computes();
  report.request.limit = report.has_budget          ? parse_size("--budget", *options.budget)
                         : options.device == "cuda" ? ops::free_cuda_memory().value_or(kFreeOnH200)
                                                    : machine::available_memory() + outlined.process;
  report.plan = plan_model(*outlined.model, report.request);
  if (!report.plan.fits() && !report.plan.on_host()) report.would_fit = what_would_fit(*outlined.model, report.request, report.plan);
  report.most_sequences = most_sequences(*outlined.model, report.request, report.plan);
  add_replays(report);
  add_speed(report, options);

  if (options.svg) {
    const std::string picture = to_svg(report);
    formats::AtomicFile file(*options.svg);
    file.write(picture.data(), picture.size());
    file.commit();
  }
  const std::optional<PictureFacts> pictures = picture_facts(options);
  if (options.json) {
    auto json = to_json(report);
    if (pictures) json["pictures"] = to_json(*pictures);
    print(json.dump(1) + "\n");
  } else {
    print(to_text(report, std::min(report::inspect_terminal(stdout).width, 100)) + (pictures ? to_text(*pictures) : ""));
  }
  return 0;
}

}  // namespace palimpsest::cli
