// The largest magnitude of a lane's values so far, as a loop carries it from word to word.
module peak (
    input wire clk,
    input wire valid,
    input wire first,  // with valid: of a row
    input wire signed [31:0] value,
    output reg signed [31:0] out  // two cycles later
);
    reg signed [31:0] magnitude;
    reg valid_1, first_1;

    always @(posedge clk) begin
        magnitude <= value < 0 ? -value : value;
        valid_1 <= valid;
        first_1 <= first;
        if (valid_1 && (first_1 || magnitude > out)) out <= magnitude;
    end
endmodule
