// LOG2 of NUMERICS.md: 20 fraction bits of the logarithm of a number above 0, one from each squaring
// of its mantissa.
module log2 (
    input wire clk,
    input wire [62:0] value,
    output wire signed [31:0] out
);
    localparam BITS = 20;
    localparam STEP = latency::PRODUCT + 1;

    wire [31:0] mantissa, exponent;
    wire [32*(BITS+1)-1:0] mantissas;
    wire [BITS-1:0] bits;
    wire [5:0] whole;
    wire unused = |{exponent[31:6], mantissas[32*BITS+:32]};

    // The place of the highest bit is 30 above the scale's exponent.
    normalise #(.WIDTH(64)) normal (
        .clk(clk),
        .value({1'b0, value}),
        .exponent(32'sd30),
        .out_mantissa(mantissa),
        .out_exponent(exponent)
    );
    assign mantissas[31:0] = mantissa;
    delay #(.WIDTH(6), .DEPTH(BITS * STEP)) for_whole (
        .clk(clk), .in(exponent[5:0]), .out(whole));

    genvar i;
    generate
        for (i = 0; i < BITS; i = i + 1) begin : fraction
            wire one;
            log2_bit step (
                .clk(clk),
                .mantissa(mantissas[32*i+:32]),
                .out_mantissa(mantissas[32*(i+1)+:32]),
                .out_bit(one)
            );
            delay #(.WIDTH(1), .DEPTH((BITS - 1 - i) * STEP)) until_last (
                .clk(clk), .in(one), .out(bits[BITS-1-i]));
        end
    endgenerate
    assign out = {6'd0, whole, bits};
endmodule
