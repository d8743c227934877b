// One DSP48E2 that multiplies and adds: registers on both operands, on the product and on the sum.
// The addend is a constant, a neighbour's sum (PCIN) or the port C.
module dsp_product #(
    parameter A = 27,  // bits with sign, 27 at most
    parameter B = 18   // bits with sign, 18 at most
) (
    input wire clk,
    input wire signed [A-1:0] a,
    input wire signed [B-1:0] b,
    input wire signed [47:0] addend,
    output reg signed [47:0] result  // three cycles after a and b, one after addend
);
    reg signed [A-1:0] a_q;
    reg signed [B-1:0] b_q;
    reg signed [A+B-1:0] product_q;

    always @(posedge clk) begin
        a_q <= a;
        b_q <= b;
        product_q <= a_q * b_q;
        result <= addend + 48'(product_q);
    end
endmodule
