// One bit of a logarithm: the square of a mantissa in [1, 2), and whether it is 2 or more.
module log2_bit (
    input wire clk,
    input wire signed [31:0] mantissa,
    output reg signed [31:0] out_mantissa,
    output reg out_bit
);
    wire [32:0] square;
    wire unused = square[32];

    product #(.LOW(30), .OUT(33)) squared (
        .clk(clk), .a(mantissa), .b(mantissa), .out(square));
    always @(posedge clk) begin
        out_mantissa <= square[31] ? {1'b0, square[31:1]} : square[31:0];
        out_bit <= square[31];
    end
endmodule
