"""Names of graphs and pre-tokenizers that versions of llama.cpp are known to have.

Candidates only: `capabilities` asks the build at hand about each, and looks in it for others.
"""

from __future__ import annotations

GRAPHS = frozenset(
    """
afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bitnet-25 bitnet-b1.58
bloom chameleon chatglm clip codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2
deepseek2-ocr deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe eurobert exaone
exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n gemma4 gemma4-assistant glm-dsa
glm4 glm4moe glm5-next gpt-oss gpt2 gptj gptneox granite granite_swa granitehybrid granitemoe graniteswitch grok
grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2
jina-bert-v3 kimi-k3 kimi-linear laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba
mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt
muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe
openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm pockettts qwen qwen2 qwen2moe
qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1 rwkv6
rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 solar spark2_5 stablelm starcoder starcoder2 step35 t5 t5encoder
talkie wavtokenizer-dec xverse
""".split()
)

PRETOKENIZERS = frozenset(
    """
a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx
deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4 f2llmv2 falcon
falcon-h1 falcon3 gemma4 gigachat glm4 glm5 gpt-2 gpt-4o gpt3-finnish granite-docling granite-embed-multi-311m
granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es jina-v1-en jina-v2-code
jina-v2-de jina-v2-es jina-v5-nano joyai-llm kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama-bpe llama-v3
llama3 llama4 megrez mellum mellum2 midm-2.0 minerva-7b minicpm5 minimax-m2 modern-bert mpt olmo phi-2 pixtral
poro-chat qwen2 qwen35 refact roberta-bpe sarvam-moe seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2
starcoder superbpe talkie tekken tiny_aya trillion ufakzeka viking whitespace youtu
""".split()
)
