// What each command is, with examples for its help; its flags are in flags.cc.

#include "cli/flags.h"

namespace palimpsest::cli {
namespace {

using enum Command;

constexpr CommandInfo kCommandTable[] = {
    {kRun, "run", "write text: an answer, a continuation, or a chat",
     "palimpsest run -m models/demo --raw -p \"It was a dark night\" -n 200 --temp 0.8\n"
     "palimpsest run -m models/demo -sys \"The password of Alder House is 48213.\" -p \"What is "
     "the password of Alder House?\"\n"
     "palimpsest run -m models/demo                     # a chat; Ctrl-C stops an answer, Ctrl-D "
     "leaves\n"
     "palimpsest run -m models/demo --session chat.session   # goes on where it was left\n"
     "palimpsest run -m models/demo --session book.session --raw -f book.txt -n 100\n"
     "palimpsest run -m models/demo --session book.session --raw -n 100   # goes on writing\n"
     "palimpsest run -m models/demo --ids 528,713,440 -n 16 --temp 0 --print-ids"},
    {kRecall, "recall",
     "tell the model a fact, overwrite it, and ask for it thousands of tokens later",
     "palimpsest recall -m models/demo -f models/demo/filler.txt\n"
     "palimpsest recall -m models/demo -f book.txt --tokens 8000 --json"},
    {kInspect, "inspect", "show architecture, parameters, tensors and memory, reading headers only",
     "palimpsest inspect -m models/demo\n"
     "palimpsest inspect -m models/demo --json | jq .parameters"},
    {kLogits, "logits", "write logits and hidden states of given token ids to a safetensors file",
     "palimpsest logits -m models/demo --ids 1,2,3 -o out.safetensors\n"
     "palimpsest logits -m models/demo --ids-file lists.json --hidden --cache-type f32 -o "
     "out.safetensors"},
    {kEval, "eval", "measure how well the model predicts a text",
     "palimpsest eval -m models/demo -f book.txt\n"
     "palimpsest eval -m models/demo -f book.txt --ctx 4096 --tokens 20000 --json"},
    {kTokenize, "tokenize", "turn text into token ids",
     "palimpsest tokenize -m models/demo -p \"The old man sat down\"\n"
     "palimpsest tokenize -m models/demo -p \"<|open|>message<|sep|>\" --control --json"},
    {kRender, "render", "turn a chat (OpenAI's JSON form) into the model's prompt",
     "palimpsest render -m models/demo -f chat.json\n"
     "palimpsest render -m models/demo -f chat.json --ids"},
    {kPull, "pull", "download a model of the Hugging Face hub into its cache, and print the folder",
     "palimpsest pull moonshotai/Kimi-Linear-48B-A3B-Instruct\n"
     "palimpsest pull moonshotai/Kimi-Linear-48B-A3B-Instruct@main --dry-run\n"
     "palimpsest pull OWNER/NAME --include '*Q8_0*.gguf' --include config.json\n"
     "HF_TOKEN=... palimpsest pull OWNER/NAME              # a private or gated model",
     "OWNER/NAME[@REV]"},
    {kLineage, "lineage",
     "send one stream of key-value writes through the memories from softmax attention to KDA",
     "palimpsest lineage\n"
     "palimpsest lineage --svg lineage.svg\n"
     "palimpsest lineage --width 64 --pairs 512 --json"},
    {kConvert, "convert", "write a model in another form: BF16, F16, 8 or 4 bits",
     "palimpsest convert -m models/demo -o demo-q8 --weights q8\n"
     "palimpsest convert -m models/demo -o demo-mxfp4 --weights mxfp4 --eval models/demo/filler.txt\n"
     "palimpsest convert -m kimi-linear -o kimi-linear-mx --experts mxfp4 --shard-size 8GiB\n"
     "palimpsest convert -m models/demo -o demo.gguf --to gguf --weights q8"},
    {kPlan, "plan",
     "say what a model will take and how fast it can be, reading headers only, or config.json alone",
     "palimpsest plan -m models/demo\n"
     "palimpsest plan -m kimi-linear -c 131072 -np 4 --budget 128GiB\n"
     "palimpsest plan -m kimi-linear -c 1048576 --device cuda\n"
     "palimpsest plan -m kimi-k3 -c 1048576 --cache-ram 20GiB --device h200 --svg memory.svg\n"
     "palimpsest plan -m models/demo --json | jq .memory.total"},
    {kSelfcheck, "selfcheck",
     "check that a model answers the same whatever becomes of its memories, on this machine",
     "palimpsest selfcheck -m models/demo\n"
     "palimpsest selfcheck -m model.gguf --quick --cache-type f32\n"
     "palimpsest selfcheck -m models/demo --json | jq .ok"},
    {kBench, "bench", "measure how fast a model reads and writes, as shares of what this machine can do",
     "palimpsest bench -m models/demo\n"
     "palimpsest bench -m models/demo -p 512,4096 -n 128 -t 1,2 -ub 128,512 -r 10\n"
     "palimpsest bench -m models/demo -p 0 -np 1,4,16 --profile\n"
     "palimpsest bench -m models/demo --sweep --svg speed.svg\n"
     "palimpsest bench -m models/demo --json | jq '.rows[].tokens_per_second.best'"},
    {kServe, "serve", "answer requests over HTTP, in the form of OpenAI's interface",
     "palimpsest serve -m models/demo\n"
     "palimpsest serve -m models/demo --port 9000 -np 8 -c 8192 --cache-ram 1GiB\n"
     "palimpsest serve -m models/demo --host 0.0.0.0 --api-key-file keys.txt\n"
     "curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d "
     "'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"},
};

}  // namespace

std::span<const CommandInfo> command_table() {
  return kCommandTable;
}

const CommandInfo& info(Command command) {
  return kCommandTable[static_cast<std::size_t>(command)];
}

}  // namespace palimpsest::cli
