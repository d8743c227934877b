// One step of a Horner scheme with 15 fraction bits, in one DSP: (y * x) >> 15 plus a coefficient.
module horner #(
    parameter X = 16,  // bits of x with its sign
    parameter COEFFICIENT = 0
) (
    input wire clk,
    input wire signed [16:0] y,
    input wire signed [X-1:0] x,
    output wire signed [16:0] out  // three cycles later
);
    wire signed [47:0] sum;
    wire unused = |{sum[47:32], sum[14:0]};

    dsp_product #(.A(17), .B(X)) step (
        .clk(clk), .a(y), .b(x), .addend(48'(COEFFICIENT) <<< 15), .result(sum));
    assign out = sum[31:15];
endmodule
