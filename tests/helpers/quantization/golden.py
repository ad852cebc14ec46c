"""Bytes that producers' libraries wrote for `scheme_oracle.w`, by their SHA-256.

compressed-tensors 0.20.0, nvidia-modelopt 0.47.0, torchao 0.18.0, gguf 0.19.0, mlx 0.32.4,
bitsandbytes 0.50.2, comfy-kitchen 0.2.40 and transformers 5.23.0. A row is a part's name: its dtype
and shape, and the first 16 digits of the digest of its bytes, little-endian, in C order.
"""

GOLDEN: dict[str, dict[str, tuple[str, str]]] = {
    "compressed-tensors nvfp4": {
        "weight_global_scale": ("float32 (1,)", "cc0cd2ae0d789561"),
        "weight_packed": ("uint8 (16, 64)", "c44a73fea07b2b5f"),
        "weight_scale": ("float8_e4m3fn (16, 8)", "ba5144906a0053a7"),
        "decoded": ("bfloat16 (16, 128)", "4eddf5cf5eaaa9ef"),
    },
    "compressed-tensors mxfp4": {
        "weight_packed": ("uint8 (16, 64)", "a45079ac162bc3e1"),
        "weight_scale": ("uint8 (16, 4)", "04d11b84a625b3fe"),
        "decoded": ("bfloat16 (16, 128)", "fa3928abf6c0b9cb"),
    },
    "compressed-tensors mxfp6": {
        "weight_packed": ("uint8 (16, 96)", "9db8d8366dfe6315"),
        "weight_scale": ("uint8 (16, 4)", "04d11b84a625b3fe"),
        "decoded": ("bfloat16 (16, 128)", "c775c6a2217db777"),
    },
    "compressed-tensors mxfp8": {
        "weight_scale": ("uint8 (16, 4)", "c354e929475813d8"),
        "weight": ("float8_e4m3fn (16, 128)", "922f67f50aa0dd94"),
        "decoded": ("bfloat16 (16, 128)", "c775c6a2217db777"),
    },
    "compressed-tensors fp8 block": {
        "weight_scale": ("bfloat16 (2, 2)", "48e2217d682361d1"),
        "weight": ("float8_e4m3fn (256, 256)", "09eeb78a6024a279"),
        "decoded": ("bfloat16 (256, 256)", "c8efe18d34b679f7"),
    },
    "compressed-tensors fp8 channel": {
        "weight_scale": ("bfloat16 (16, 1)", "e85b2fc762ab421e"),
        "weight": ("float8_e4m3fn (16, 128)", "d46b2f2dc77cdd70"),
        "decoded": ("bfloat16 (16, 128)", "0bd3dba871c3b009"),
    },
    "compressed-tensors fp8 tensor": {
        "weight_scale": ("bfloat16 (1,)", "306a40e8525904ba"),
        "weight": ("float8_e4m3fn (16, 128)", "d46b2f2dc77cdd70"),
        "decoded": ("bfloat16 (16, 128)", "0bd3dba871c3b009"),
    },
    "compressed-tensors int8 channel": {
        "weight_scale": ("bfloat16 (16, 1)", "d531871be575baa2"),
        "weight": ("int8 (16, 128)", "9430e9d4acd4e784"),
        "decoded": ("bfloat16 (16, 128)", "a285384557bae986"),
    },
    "compressed-tensors pack int4 sym g32": {
        "weight_scale": ("bfloat16 (16, 4)", "100f1d0680c1d4c9"),
        "weight_packed": ("int32 (16, 16)", "ec1c039edfc7b465"),
        "weight_shape": ("int64 (2,)", "f641f84d877f18b6"),
        "decoded": ("bfloat16 (16, 128)", "dd4f80d662158aea"),
    },
    "compressed-tensors pack int8 sym g32": {
        "weight_scale": ("bfloat16 (16, 4)", "250396051b266188"),
        "weight_packed": ("int32 (16, 32)", "bed9062229e0c33d"),
        "weight_shape": ("int64 (2,)", "f641f84d877f18b6"),
        "decoded": ("bfloat16 (16, 128)", "e4046a7db519df35"),
    },
    "compressed-tensors pack int3 sym g32": {
        "weight_scale": ("bfloat16 (16, 4)", "532ba901494c2fd5"),
        "weight_packed": ("int32 (16, 12)", "dec9905b017c069e"),
        "weight_shape": ("int64 (2,)", "f641f84d877f18b6"),
        "decoded": ("bfloat16 (16, 128)", "dfd727d7072cf837"),
    },
    "compressed-tensors pack int2 sym g32": {
        "weight_scale": ("bfloat16 (16, 4)", "a188d2473d35f84a"),
        "weight_packed": ("int32 (16, 8)", "544840affb8c7146"),
        "weight_shape": ("int64 (2,)", "f641f84d877f18b6"),
        "decoded": ("bfloat16 (16, 128)", "1087b2608e7d28ed"),
    },
    "compressed-tensors pack int4 asym g32": {
        "weight_scale": ("bfloat16 (16, 4)", "b8f911c31a7eef9d"),
        "weight_zero_point": ("int32 (2, 4)", "953d970b372c4098"),
        "weight_packed": ("int32 (16, 16)", "c5fab5b38c527512"),
        "weight_shape": ("int64 (2,)", "f641f84d877f18b6"),
        "decoded": ("bfloat16 (16, 128)", "d1d8fda8d69abce1"),
    },
    "modelopt nvfp4 bf16": {
        "weight": ("uint8 (16, 64)", "6b87dba61c53981b"),
        "weight_scale": ("float8_e4m3fn (16, 8)", "ba5144906a0053a7"),
        "weight_scale_2": ("float32 (1,)", "b86331f807fe4601"),
        "decoded": ("bfloat16 (16, 128)", "180376b97262e799"),
    },
    "modelopt nvfp4 f32": {
        "weight": ("uint8 (16, 64)", "6b87dba61c53981b"),
        "weight_scale": ("float8_e4m3fn (16, 8)", "ba5144906a0053a7"),
        "weight_scale_2": ("float32 (1,)", "b86331f807fe4601"),
        "decoded": ("bfloat16 (16, 128)", "180376b97262e799"),
    },
    "modelopt fp8 block": {
        "weight": ("float8_e4m3fn (256, 320)", "8726340a7de08fb7"),
        "weight_scale": ("float32 (2, 1, 3, 1)", "9d38334c0ee95f8b"),
    },
    "modelopt int4 g32": {
        "weight": ("uint8 (8, 128)", "c48467a5fe04cc72"),
        "weight_scale": ("float32 (16, 4)", "60e539081f511761"),
    },
    "modelopt int8": {
        "weight": ("int8 (16, 128)", "29493ff7c4c69416"),
        "weight_scale": ("float32 (16,)", "2493bc35ea88f219"),
    },
    "modelopt mxfp8": {
        "weight": ("float8_e4m3fn (16, 128)", "922f67f50aa0dd94"),
        "weight_scale": ("uint8 (16, 4)", "c354e929475813d8"),
    },
    "torchao floor fp4": {
        "scale": ("uint8 (16, 4)", "04d11b84a625b3fe"),
        "data": ("uint8 (16, 64)", "a45079ac162bc3e1"),
    },
    "torchao floor e4m3": {
        "scale": ("uint8 (16, 4)", "c354e929475813d8"),
        "data": ("uint8 (16, 128)", "922f67f50aa0dd94"),
    },
    "torchao floor e5m2": {
        "scale": ("uint8 (16, 4)", "2b2858dbb4c85c8e"),
        "data": ("uint8 (16, 128)", "705507e8e885b4af"),
    },
    "torchao rceil fp4": {
        "scale": ("uint8 (16, 4)", "04d11b84a625b3fe"),
        "data": ("uint8 (16, 64)", "a45079ac162bc3e1"),
    },
    "torchao rceil e4m3": {
        "scale": ("uint8 (16, 4)", "c354e929475813d8"),
        "data": ("uint8 (16, 128)", "922f67f50aa0dd94"),
    },
    "torchao rceil e5m2": {
        "scale": ("uint8 (16, 4)", "2b2858dbb4c85c8e"),
        "data": ("uint8 (16, 128)", "705507e8e885b4af"),
    },
    "torchao ceil fp4": {
        "scale": ("uint8 (16, 4)", "4a95ade13abf1e94"),
        "data": ("uint8 (16, 64)", "59c2a1e2040e450e"),
    },
    "torchao ceil e4m3": {
        "scale": ("uint8 (16, 4)", "54b74fa3b7513170"),
        "data": ("uint8 (16, 128)", "b8a3c41a50ed270b"),
    },
    "torchao ceil e5m2": {
        "scale": ("uint8 (16, 4)", "153ac90a80490199"),
        "data": ("uint8 (16, 128)", "e65e850463320091"),
    },
    "torchao nvfp4": {
        "data": ("uint8 (16, 64)", "90b27d7f35a60fda"),
        "scale": ("uint8 (16, 8)", "ba5144906a0053a7"),
        "per_tensor_scale": ("float32 (1,)", "b86331f807fe4601"),
    },
    "gguf Q8_0": {
        "blocks": ("uint8 (2, 272)", "e160cec362c08e14"),
        "decoded": ("float32 (2, 256)", "274ca70d20695cbd"),
    },
    "gguf Q4_0": {
        "blocks": ("uint8 (2, 144)", "226d0d0582c87bb4"),
        "decoded": ("float32 (2, 256)", "8145edd11a64ad70"),
    },
    "gguf Q4_1": {
        "blocks": ("uint8 (2, 160)", "79c70e82ca4645bf"),
        "decoded": ("float32 (2, 256)", "c70c38025695e37c"),
    },
    "gguf Q5_0": {
        "blocks": ("uint8 (2, 176)", "562a8436995eafd8"),
        "decoded": ("float32 (2, 256)", "9dbc255fbafba7c1"),
    },
    "gguf Q5_1": {
        "blocks": ("uint8 (2, 192)", "fc0c27ddeff94794"),
        "decoded": ("float32 (2, 256)", "c90e07210ac62976"),
    },
    "gguf mxfp4": {
        "blocks": ("uint8 (2, 136)", "e313a25b6ae44e74"),
        "decoded": ("float32 (2, 256)", "45800150d8541f04"),
    },
    "bitsandbytes nf4": {
        "weight": ("uint8 (1024, 1)", "3bd9bb8d1419d9b3"),
        "absmax": ("float32 (32,)", "936064adb0f6e208"),
        "decoded": ("bfloat16 (16, 128)", "d794fbadbfea8d20"),
    },
    "bitsandbytes nf4 nested": {
        "weight": ("uint8 (1024, 1)", "3bd9bb8d1419d9b3"),
        "absmax": ("uint8 (32,)", "d8283e8a593205bc"),
        "decoded": ("bfloat16 (16, 128)", "2cc2e960df11e9b2"),
        "nested_absmax": ("float32 (1,)", "92a2ce8b58ec2dbf"),
        "offset": ("float32 (1,)", "7d1a32817bbe90d2"),
    },
    "bitsandbytes fp4": {
        "weight": ("uint8 (1024, 1)", "2de954e96cdfc071"),
        "absmax": ("float32 (32,)", "936064adb0f6e208"),
        "decoded": ("bfloat16 (16, 128)", "659f99f7bb5a6b97"),
    },
    "bitsandbytes int8": {
        "weight": ("int8 (16, 128)", "29493ff7c4c69416"),
        "SCB": ("float32 (16,)", "62710491bd3939dd"),
    },
    "comfy nvfp4": {
        "weight": ("uint8 (16, 64)", "be2067a0fc0c755f"),
        "weight_scale": ("uint8 (128, 8)", "16fd5fca2fdd5357"),
        "scale_2": ("float32 (1,)", "b86331f807fe4601"),
    },
    "comfy mxfp8": {
        "weight": ("uint8 (32, 128)", "dea78c1d97fc6d57"),
        "weight_scale": ("uint8 (128, 4)", "3d0fafe5758831ad"),
    },
    "transformers fp8 block": {
        "weight": ("float8_e4m3fn (256, 256)", "3464ae6ad01bca18"),
        "weight_scale_inv": ("float32 (2, 2)", "983662525a0b3e93"),
    },
    "transformers fp8 block ue8m0": {
        "weight": ("float8_e4m3fn (256, 256)", "5cff52ef46f6d4bc"),
        "weight_scale_inv": ("float8_e8m0fnu (2, 2)", "8b6832f35a015a55"),
    },
    "mlx affine 4": {
        "weight": ("uint32 (16, 16)", "95fb42d7376f3f48"),
        "scales": ("float32 (16, 2)", "1c3333e8e6a6eb0a"),
        "biases": ("float32 (16, 2)", "abd73dc192b1e734"),
    },
    "mlx affine 3": {
        "weight": ("uint32 (16, 12)", "d8a3e8d1ba5d21d2"),
    },
    "mlx affine 5": {
        "weight": ("uint32 (16, 20)", "6620aeab036b618a"),
    },
    "mlx affine 6": {
        "weight": ("uint32 (16, 24)", "fc520851f3b1cbf8"),
    },
    "mlx affine 8": {
        "weight": ("uint32 (16, 32)", "6083ee4a2d7b9fce"),
    },
    "mlx mxfp4": {
        "weight": ("uint32 (16, 16)", "9afb4c5ef8b79f8d"),
    },
    "mlx mxfp8": {
        "weight": ("uint32 (16, 32)", "922f67f50aa0dd94"),
    },
    "mlx nvfp4": {
        "weight": ("uint32 (16, 16)", "5d0546fb2104652c"),
        "scales": ("uint8 (16, 8)", "3d185c6626cf0402"),
    },
}
