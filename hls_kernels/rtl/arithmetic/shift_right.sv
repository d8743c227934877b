// Arithmetic right shift by 0 to 2^BITS - 1: the larger steps, then the smaller ones.
module shift_right #(
    parameter WIDTH = 32,
    parameter BITS = 5
) (
    input wire clk,
    input wire signed [WIDTH-1:0] value,
    input wire [BITS-1:0] by,
    output reg signed [WIDTH-1:0] out  // two cycles later
);
    localparam FINE = BITS / 2 + 1;

    reg signed [WIDTH-1:0] coarse;
    reg [FINE-1:0] rest;

    always @(posedge clk) begin
        coarse <= value >>> {by[BITS-1:FINE], {FINE{1'b0}}};
        rest <= by[FINE-1:0];
        out <= coarse >>> rest;
    end
endmodule
